"""What Megatron-LM asks of a plan when CUDA graphs launch parts of its layers.

The switches are ``graph-attention``, ``graph-router`` and ``graph-layer`` of a variant; without
them all of these hold.
"""

from __future__ import annotations

import numpy as np

from meshplan.space.facts import Facts
from meshplan.space.plan import Framework, Recompute
from meshplan.space.rules.predicates import equals, holds_for
from meshplan.space.rules.rule import Fields, Legal
from meshplan.space.rules.shared import RuleMaker

__all__ = ["MEGATRON_GRAPH_RULES"]

_rule = RuleMaker(Framework.MEGATRON, "Megatron-LM core 0.20.0 (d98e8a64)")

_CONFIG = "megatron/core/transformer/transformer_config.py"
_PARTS = ("graph-attention", "graph-router")


def _has(facts: Facts, *switches: str) -> bool:
    return any(switch in facts.options for switch in switches)


def _graphs_are_of_one_kind(facts: Facts) -> bool:
    """Parts of layers are captured by another implementation than whole layers."""
    return not (_has(facts, "graph-layer") and _has(facts, *_PARTS))


def _graphs_leave_the_exchange(facts: Facts) -> bool:
    """An exchange in a graph of its layer cannot run beside another micro-batch."""
    return not (_has(facts, "graph-layer") and _has(facts, "overlapped-exchange"))


def _graph_router_needs_experts(facts: Facts) -> bool:
    return not _has(facts, "graph-router") or facts.is_moe


def _graphs_without_full_recompute(facts: Facts, plan: Fields) -> Legal:
    graphs = _has(facts, "graph-layer", *_PARTS)
    return np.bool_(not graphs) | equals(plan.recompute & int(Recompute.FULL), 0)


def _graph_router_keeps_experts(facts: Facts, plan: Fields) -> Legal:
    """Recomputed experts would run the router again, outside of its graph."""
    kept = equals(plan.recompute & int(Recompute.MOE), 0)
    return np.bool_(not _has(facts, "graph-router")) | kept


def _graphs_without_activation_offload(facts: Facts, plan: Fields) -> Legal:
    graphs = _has(facts, "graph-layer", *_PARTS)
    return np.bool_(not graphs) | equals(plan.offload_layers, 0)


MEGATRON_GRAPH_RULES = (
    _rule(
        "graphs_are_of_one_kind",
        axis="framework",
        reads="",
        legal=holds_for(_graphs_are_of_one_kind),
        source=f"{_CONFIG}:1075: one cuda_graph_impl, 1090: no cuda_graph_modules for whole layers",
    ),
    _rule(
        "graphs_leave_the_exchange",
        axis="framework",
        reads="",
        legal=holds_for(_graphs_leave_the_exchange),
        source="megatron/core/transformer/transformer_layer.py:1374",
    ),
    _rule(
        "graph_router_needs_experts",
        axis="framework",
        reads="",
        legal=holds_for(_graph_router_needs_experts),
        source=f"{_CONFIG}:2825",
    ),
    _rule(
        "graphs_without_full_recompute",
        axis="recompute",
        reads="recompute",
        legal=_graphs_without_full_recompute,
        source=f"{_CONFIG}:2856",
    ),
    _rule(
        "graph_router_keeps_experts",
        axis="recompute",
        reads="recompute",
        legal=_graph_router_keeps_experts,
        source=f"{_CONFIG}:2862",
    ),
    _rule(
        "graphs_without_activation_offload",
        axis="offload_layers",
        reads="offload_layers",
        legal=_graphs_without_activation_offload,
        source=f"{_CONFIG}:2801",
    ),
)
