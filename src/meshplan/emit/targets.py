"""All config formats by the name that ``--to`` takes."""

from __future__ import annotations

from meshplan.emit.accelerate import ACCELERATE
from meshplan.emit.bridge import BRIDGE
from meshplan.emit.deepspeed import DEEPSPEED
from meshplan.emit.launch import launcher_obstacles
from meshplan.emit.maxtext import MAXTEXT
from meshplan.emit.megatron import MEGATRON
from meshplan.emit.nanotron import NANOTRON
from meshplan.emit.records import Obstacle, Order, Target, once
from meshplan.emit.torchtitan import TORCHTITAN

__all__ = ["TARGETS", "obstacles_of"]

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (MEGATRON, BRIDGE, TORCHTITAN, DEEPSPEED, ACCELERATE, NANOTRON, MAXTEXT)
}


def obstacles_of(order: Order, target: Target) -> tuple[Obstacle, ...]:
    """What stands in the way of writing a plan for a target, with any launcher."""
    if order.plan.framework is not target.framework:
        numbers = {
            "framework": order.plan.framework.name.lower(),
            "wanted": target.framework.name.lower(),
        }
        return (Obstacle(code="other_framework", numbers=numbers),)
    return once([*launcher_obstacles(order), *target.obstacles(order)])
