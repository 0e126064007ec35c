"""Which dimension for which bottleneck, which degrees for which model.

References:
    [1] S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
        Models", section 3.1: 16 bytes per parameter for mixed-precision Adam.
"""

from __future__ import annotations

import math
from enum import StrEnum
from itertools import product

from meshplan.errors import UserError
from meshplan.record import record
from meshplan.thumb.checks import check_numbers

__all__ = [
    "BYTES_PER_PARAM",
    "Bottleneck",
    "Candidate",
    "Degrees",
    "Dimension",
    "SizeTier",
    "Strategy",
    "communication_score",
    "dimension_for",
    "estimate_memory_gb",
    "find_bottlenecks",
    "list_candidates",
    "medium_limit_b",
    "recommend",
    "size_tier",
    "solve_degrees",
    "strategy_for",
]

BYTES_PER_PARAM = 16
"""Weights and gradients in 2 bytes each, Adam's master weights and two moments in 4 each [1]."""

_DEGREES = (1, 2, 4, 8)
_SCORE_TP, _SCORE_PP, _SCORE_DP = 10.0, 3.0, 0.5
_SMALL_BELOW_B, _HUGE_FROM_B = 1.0, 100.0
_DEEP_FROM_LAYERS = 100


class Bottleneck(StrEnum):
    """What holds a training job back."""

    DATA_VOLUME = "data_volume"
    LAYER_TOO_LARGE = "layer_too_large"
    CHAIN_TOO_LONG = "chain_too_long"


class Dimension(StrEnum):
    """Kind of parallelism."""

    DATA = "dp"
    TENSOR = "tp"
    PIPELINE = "pp"


class SizeTier(StrEnum):
    """How large a model is, for the choice of a strategy."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"
    HUGE = "huge"


class Strategy(StrEnum):
    """What to use for a tier."""

    SINGLE_GPU = "single_gpu"
    DATA_OR_FSDP = "data_or_fsdp"
    TENSOR_PIPELINE_DATA = "tensor_pipeline_data"
    ALL_THREE_WIDE = "all_three_wide"


_CURE = {
    Bottleneck.DATA_VOLUME: Dimension.DATA,
    Bottleneck.LAYER_TOO_LARGE: Dimension.TENSOR,
    Bottleneck.CHAIN_TOO_LONG: Dimension.PIPELINE,
}

_STRATEGY = {
    SizeTier.SMALL: Strategy.SINGLE_GPU,
    SizeTier.MEDIUM: Strategy.DATA_OR_FSDP,
    SizeTier.LARGE: Strategy.TENSOR_PIPELINE_DATA,
    SizeTier.HUGE: Strategy.ALL_THREE_WIDE,
}


class Degrees(dict[str, int]):
    """The three degrees, as a dict in the order dp, tp, pp and as attributes."""

    def __init__(self, *, dp: int, tp: int, pp: int) -> None:
        super().__init__(dp=dp, tp=tp, pp=pp)

    @property
    def dp(self) -> int:
        """Data-parallel replicas."""
        return self["dp"]

    @property
    def tp(self) -> int:
        """Tensor-parallel degree."""
        return self["tp"]

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return self["pp"]


@record
class Candidate:
    """One combination that the recommender looked at.

    Attributes:
        degrees: the combination.
        memory_gb: memory per GPU by the rule [GB].
        score: communication score, lower is better.
        fits: whether ``memory_gb`` is within the memory of a GPU.
    """

    degrees: Degrees
    memory_gb: float
    score: float
    fits: bool


def dimension_for(bottleneck: Bottleneck | str) -> Dimension:
    """Name the dimension that cures a bottleneck.

    Much data calls for data parallelism, a layer that one GPU cannot hold for tensor
    parallelism, a long chain of layers for pipeline parallelism.
    """
    known = [kind.value for kind in Bottleneck]
    if bottleneck not in known:
        raise UserError.of("unknown_choice", where="bottleneck", value=bottleneck, allowed=known)
    return _CURE[Bottleneck(bottleneck)]


def find_bottlenecks(
    *, layer_memory_gb: float, num_layers: int, gpu_memory_gb: float = 80.0
) -> tuple[Bottleneck, ...]:
    """Find what holds a model back; data volume when nothing else does.

    Args:
        layer_memory_gb: memory of the largest single layer with its training state [GB].
        num_layers: layers in the chain; a hundred and more count as long.
        gpu_memory_gb: memory of one GPU [GB].

    Returns:
        The bottlenecks, the one to cure first in front.
    """
    check_numbers(
        positive={"layer_memory_gb": layer_memory_gb, "gpu_memory_gb": gpu_memory_gb},
        counts={"num_layers": num_layers},
    )
    found = []
    if layer_memory_gb > gpu_memory_gb:
        found.append(Bottleneck.LAYER_TOO_LARGE)
    if num_layers >= _DEEP_FROM_LAYERS:
        found.append(Bottleneck.CHAIN_TOO_LONG)
    return tuple(found) or (Bottleneck.DATA_VOLUME,)


def medium_limit_b(*, gpu_memory_gb: float = 80.0, gpus_per_node: int = 8) -> float:
    """Return the size up to which one node holds the training state of a model.

    Equation:
        ``gpus_per_node * gpu_memory_gb / 16 bytes``, at least 1 and at most 100

    Returns:
        Parameters [1e9]; 40 for a node of eight 80 GB GPUs.
    """
    check_numbers(
        positive={"gpu_memory_gb": gpu_memory_gb}, counts={"gpus_per_node": gpus_per_node}
    )
    limit = gpus_per_node * gpu_memory_gb / BYTES_PER_PARAM
    return min(max(limit, _SMALL_BELOW_B), _HUGE_FROM_B)


def size_tier(
    *, num_params_b: float, gpu_memory_gb: float = 80.0, gpus_per_node: int = 8
) -> SizeTier:
    """Sort a model into a tier by its size.

    Below 1B is small, 7B to 13B medium, about 70B large, 100B and more huge. Two gaps are left
    by that rule, and both close the same way, by asking whether sharding the state over the data
    axis is enough. From 1B on, Adam's state soon outgrows one GPU (80 GB at 5B) while no single
    layer does, so 1B to 7B is medium. Above 13B the state stays inside one node, where sharding
    it is cheap, up to :func:`medium_limit_b` (40B for eight 80 GB GPUs); beyond that every step
    would gather the weights across nodes, and splitting layers and stages starts to pay: large.

    Args:
        num_params_b: parameters [1e9].
        gpu_memory_gb: memory of one GPU [GB].
        gpus_per_node: GPUs in one node.
    """
    check_numbers(positive={"num_params_b": num_params_b})
    if num_params_b < _SMALL_BELOW_B:
        return SizeTier.SMALL
    if num_params_b >= _HUGE_FROM_B:
        return SizeTier.HUGE
    limit_b = medium_limit_b(gpu_memory_gb=gpu_memory_gb, gpus_per_node=gpus_per_node)
    return SizeTier.MEDIUM if num_params_b <= limit_b else SizeTier.LARGE


def strategy_for(tier: SizeTier | str) -> Strategy:
    """Name the strategy for a tier.

    Small: one GPU, no parallelism. Medium: data parallelism or FSDP. Large: tensor and pipeline
    parallelism until it fits, then data parallelism. Huge: all three, TP 8 and PP 8 to 16.
    """
    known = [kind.value for kind in SizeTier]
    if tier not in known:
        raise UserError.of("unknown_choice", where="tier", value=tier, allowed=known)
    return _STRATEGY[SizeTier(tier)]


def solve_degrees(
    *, num_gpus: int, dp: int | None = None, tp: int | None = None, pp: int | None = None
) -> Degrees:
    """Fill in the one degree that is missing.

    Equation:
        ``dp * tp * pp = num_gpus``

    Args:
        num_gpus: GPUs in all.
        dp: data-parallel replicas, None to solve for it.
        tp: tensor-parallel degree, None to solve for it.
        pp: pipeline stages, None to solve for it.

    Raises:
        UserError: when more than one is missing, or when they cannot multiply to ``num_gpus``.
    """
    given = {"dp": dp, "tp": tp, "pp": pp}
    known = {name: value for name, value in given.items() if value is not None}
    check_numbers(counts={"num_gpus": num_gpus, **known})
    missing = [name for name in given if name not in known]
    if len(missing) > 1:
        raise UserError.of("degrees_undetermined", where=", ".join(missing), num_gpus=num_gpus)
    taken = math.prod(known.values())
    if num_gpus % taken or (not missing and taken != num_gpus):
        raise UserError.of(
            "degrees_do_not_multiply",
            where=" * ".join(known),
            value=taken,
            allowed=[d for d in range(1, num_gpus + 1) if num_gpus % d == 0],
            num_gpus=num_gpus,
        )
    solved = {**known, **dict.fromkeys(missing, num_gpus // taken)}
    return Degrees(dp=solved["dp"], tp=solved["tp"], pp=solved["pp"])


def estimate_memory_gb(*, num_params_b: float, tp: int, pp: int) -> float:
    """Estimate the memory of one GPU; data parallelism saves none.

    Equation:
        ``16 bytes * num_params / (tp * pp)``

    Args:
        num_params_b: parameters [1e9].
        tp: tensor-parallel degree.
        pp: pipeline stages.

    Returns:
        Memory per GPU [GB, 1e9 bytes].
    """
    check_numbers(positive={"num_params_b": num_params_b}, counts={"tp": tp, "pp": pp})
    return num_params_b * BYTES_PER_PARAM / (tp * pp)


def communication_score(*, tp: int, pp: int, dp: int) -> float:
    """Score how much a combination communicates; lower is better.

    Equation:
        ``10 * tp + 3 * pp + 0.5 * dp``: tensor parallelism talks in every layer, a pipeline for
        every micro-batch, data parallelism once a step
    """
    check_numbers(counts={"tp": tp, "pp": pp, "dp": dp})
    return _SCORE_TP * tp + _SCORE_PP * pp + _SCORE_DP * dp


def list_candidates(
    *, num_params_b: float, num_gpus: int, gpu_memory_gb: float = 80.0
) -> tuple[Candidate, ...]:
    """List every combination that :func:`recommend` looks at, fitting or not.

    Both tp and pp are 1, 2, 4 or 8; dp takes the rest of the GPUs and must be whole.
    """
    check_numbers(
        positive={"num_params_b": num_params_b, "gpu_memory_gb": gpu_memory_gb},
        counts={"num_gpus": num_gpus},
    )
    found = []
    for tp, pp in product(_DEGREES, _DEGREES):
        if num_gpus % (tp * pp):
            continue
        dp = num_gpus // (tp * pp)
        memory_gb = estimate_memory_gb(num_params_b=num_params_b, tp=tp, pp=pp)
        found.append(
            Candidate(
                degrees=Degrees(dp=dp, tp=tp, pp=pp),
                memory_gb=memory_gb,
                score=communication_score(tp=tp, pp=pp, dp=dp),
                fits=memory_gb <= gpu_memory_gb,
            )
        )
    return tuple(found)


def recommend(*, num_params_b: float, num_gpus: int, gpu_memory_gb: float = 80.0) -> Degrees:
    """Recommend degrees: the lowest communication score among the combinations that fit.

    Args:
        num_params_b: parameters [1e9].
        num_gpus: GPUs in all.
        gpu_memory_gb: memory of one GPU [GB].

    Returns:
        The degrees, with ``dp * tp * pp = num_gpus``.

    Raises:
        UserError: when no combination fits; it names the memory and the GPUs that would do.
    """
    candidates = list_candidates(
        num_params_b=num_params_b, num_gpus=num_gpus, gpu_memory_gb=gpu_memory_gb
    )
    fitting = [candidate for candidate in candidates if candidate.fits]
    if fitting:
        return min(fitting, key=lambda candidate: candidate.score).degrees
    least_gb = min(candidate.memory_gb for candidate in candidates)
    splits = sorted({a * b for a, b in product(_DEGREES, _DEGREES)})
    enough = [s for s in splits if num_params_b * BYTES_PER_PARAM / s <= gpu_memory_gb]
    raise UserError.of(
        "thumb_nothing_fits" if enough else "thumb_too_large",
        where="num_gpus" if enough else "num_params_b",
        value=num_gpus if enough else num_params_b,
        num_params_b=num_params_b,
        num_gpus=num_gpus,
        gpu_memory_gb=gpu_memory_gb,
        least_gb=least_gb,
        enough_gpus=enough[0] if enough else 0,
        widest_split=splits[-1],
        widest_gb=num_params_b * BYTES_PER_PARAM / splits[-1],
    )
