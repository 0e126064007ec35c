"""How often each dimension communicates, how much, and so where it belongs.

References:
    [1] P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
        workstations": a ring moves ``2 (n - 1) / n`` of the data through each member.
"""

from __future__ import annotations

from enum import StrEnum

from meshplan.errors import UserError
from meshplan.record import record
from meshplan.thumb.checks import check_numbers
from meshplan.thumb.choose import Dimension

__all__ = [
    "Frequency",
    "Placement",
    "communication_frequency",
    "communications_per_step",
    "gradient_traffic_bytes",
    "place",
    "placement_order",
]


class Frequency(StrEnum):
    """How often a dimension communicates."""

    EVERY_LAYER = "every_layer"
    EVERY_MICRO_BATCH = "every_micro_batch"
    EVERY_STEP = "every_step"


_FREQUENCY = {
    Dimension.TENSOR: Frequency.EVERY_LAYER,
    Dimension.PIPELINE: Frequency.EVERY_MICRO_BATCH,
    Dimension.DATA: Frequency.EVERY_STEP,
}


@record
class Placement:
    """Where the groups of one dimension sit when the busiest are placed nearest.

    Attributes:
        dimension: the dimension.
        frequency: how often it communicates.
        size: members of one group.
        stride: distance in ranks between neighbours of a group.
        crosses_nodes: whether some group has members on more than one node.
    """

    dimension: Dimension
    frequency: Frequency
    size: int
    stride: int
    crosses_nodes: bool


def communication_frequency(dimension: Dimension | str) -> Frequency:
    """Say how often a dimension communicates: per layer, per micro-batch or per step."""
    known = [kind.value for kind in Dimension]
    if dimension not in known:
        raise UserError.of("unknown_choice", where="dimension", value=dimension, allowed=known)
    return _FREQUENCY[Dimension(dimension)]


def communications_per_step(
    dimension: Dimension | str, *, num_layers: int, num_micro_batches: int
) -> int:
    """Count the exchanges of a dimension in one training step.

    Equation:
        tensor: ``layers * micro-batches``; pipeline: ``micro-batches``; data: 1

    Args:
        dimension: ``tp``, ``pp`` or ``dp``.
        num_layers: layers that one GPU computes.
        num_micro_batches: micro-batches per step.

    Returns:
        Exchanges per direction; a layer's two all-reduces count as one exchange.
    """
    check_numbers(counts={"num_layers": num_layers, "num_micro_batches": num_micro_batches})
    frequency = communication_frequency(dimension)
    if frequency is Frequency.EVERY_LAYER:
        return num_layers * num_micro_batches
    return num_micro_batches if frequency is Frequency.EVERY_MICRO_BATCH else 1


def placement_order() -> tuple[Dimension, ...]:
    """Name the dimensions from the nearest place to the farthest: busiest first."""
    return (Dimension.TENSOR, Dimension.PIPELINE, Dimension.DATA)


def place(*, dp: int, tp: int, pp: int, gpus_per_node: int = 8) -> tuple[Placement, ...]:
    """Place the dimensions so that the one that talks most is nearest.

    Ranks count tensor first, then pipeline, then data: neighbours of a tensor group are next to
    each other, those of a pipeline ``tp`` apart, replicas ``tp * pp`` apart.

    Args:
        dp: data-parallel replicas.
        tp: tensor-parallel degree.
        pp: pipeline stages.
        gpus_per_node: GPUs in one node.

    Returns:
        One placement per dimension, nearest first.
    """
    check_numbers(counts={"dp": dp, "tp": tp, "pp": pp, "gpus_per_node": gpus_per_node})
    sizes = {Dimension.TENSOR: tp, Dimension.PIPELINE: pp, Dimension.DATA: dp}
    placements = []
    stride = 1
    for dimension in placement_order():
        span = stride * sizes[dimension]
        # blocks of `span` ranks stay inside nodes only if they tile a node
        inside = sizes[dimension] == 1 or gpus_per_node % span == 0 or dp * tp * pp <= gpus_per_node
        placements.append(
            Placement(
                dimension=dimension,
                frequency=_FREQUENCY[dimension],
                size=sizes[dimension],
                stride=stride,
                crosses_nodes=not inside,
            )
        )
        stride = span
    return tuple(placements)


def gradient_traffic_bytes(*, model_bytes: float, dp: int | None = None) -> float:
    """Return what each GPU sends per step to add up the gradients of all replicas.

    Equation:
        ``2 * model_bytes``; with ``dp`` given, the exact ``2 (dp - 1) / dp * model_bytes`` of a
        ring [1], which the rule rounds up

    Args:
        model_bytes: size of the gradients of one replica, equal to its weights [bytes].
        dp: data-parallel replicas; None for the rule of thumb.

    Returns:
        Bytes sent (and received) by one GPU per step.
    """
    check_numbers(positive={"model_bytes": model_bytes})
    if dp is None:
        return 2.0 * model_bytes
    check_numbers(counts={"dp": dp})
    return 2.0 * (dp - 1) / dp * model_bytes
