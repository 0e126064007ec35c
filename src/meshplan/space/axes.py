"""Which values each axis of the space takes.

The candidates are the full product of these values. An axis that the scenario pins takes the
values given, legal or not; the others take what makes sense for any number of GPUs: degrees are
divisors of it, chunks divide the layers, micro-batches are powers of two and small divisors.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

from meshplan.record import record
from meshplan.space.facts import Facts
from meshplan.space.names import axis_values, recompute_pins
from meshplan.space.plan import CpComm, Framework, Offload, Recompute, Schedule, Split

__all__ = ["AXIS_ORDER", "CROSSING_AXES", "DERIVED", "Axis", "axes_of"]

# What lies beyond is legal but never the answer, and is not tried unless the scenario pins it:
# fewer tokens per context-parallel rank, more tokens per micro-batch, more chunks per
# device, more replica groups short of one per node.
_MIN_TOKENS_PER_CP_RANK = 1024
_MAX_TOKENS_PER_MICRO_BATCH = 131_072
_SMALL_MICRO_BATCH = 8
_MAX_CHUNKS = 16
_REPLICAS = (1, 2, 4, 8)

# Axes that other fields follow from come first, so that a prefix is refused early.
AXIS_ORDER = (
    "tp",
    "pp",
    "cp",
    "micro_batch",
    "schedule",
    "vpp",
    "split",
    "sp",
    "cp_comm",
    "ep",
    "etp",
    "zero",
    "dp_replicate",
    "recompute",
    "offload",
    "offload_layers",
)

# The last axes, which leave most prefixes all their values.
CROSSING_AXES = ("recompute", "offload", "offload_layers")

# Fields that follow from others, which a scenario may still pin.
DERIVED = ("dp", "num_micro_batches", "dp_shard")


@record
class Axis:
    """One axis of the product.

    Attributes:
        fields: plan fields that it sets (two for recompute: the modules and the layers).
        values: one column of values per field, all of one length.
    """

    fields: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.values[0])


def axes_of(
    facts: Facts, *, framework: Framework, pinned: Mapping[str, tuple[object, ...]]
) -> dict[str, Axis]:
    """Return the axes of one framework in the order of ``AXIS_ORDER``."""
    free = {**_degrees(facts), **_pipeline(facts, framework), **_states(facts, framework)}
    axes: dict[str, Axis] = {}
    for name in AXIS_ORDER:
        if name == "recompute":
            pairs = (
                recompute_pins(pinned[name], framework=framework)
                if name in pinned
                else _recompute(facts, framework)
            )
            modes = tuple(int(mode) for mode, _ in pairs)
            layers = tuple(num_layers for _, num_layers in pairs)
            axes[name] = Axis(fields=("recompute", "recompute_layers"), values=(modes, layers))
            continue
        given = axis_values(pinned, name, framework=framework)
        axes[name] = Axis(fields=(name,), values=(free[name] if given is None else given,))
    return axes


def _degrees(facts: Facts) -> dict[str, tuple[int, ...]]:
    """Degrees of the dense and the expert grid, and micro-batches."""
    divisors = _divisors(facts.num_gpus)
    most_heads = max(facts.num_heads, facts.state_heads, facts.linear_heads, 1)
    tp = tuple(d for d in divisors if d <= most_heads)
    moe = facts.is_moe
    return {
        "tp": tp,
        "pp": tuple(d for d in divisors if d <= facts.num_layers),
        "cp": tuple(d for d in divisors if facts.seq_len >= d * _MIN_TOKENS_PER_CP_RANK or d == 1),
        "ep": tuple(d for d in divisors if d <= facts.num_experts) if moe else (1,),
        "etp": tuple(d for d in tp if d <= facts.gpus_per_node) if moe else (1,),
        "micro_batch": _micro_batches(facts),
    }


def _micro_batches(facts: Facts) -> tuple[int, ...]:
    most = max(1, _MAX_TOKENS_PER_MICRO_BATCH // facts.seq_len)
    return tuple(
        d
        for d in _divisors(facts.global_batch)
        if d <= most and (d <= _SMALL_MICRO_BATCH or d & (d - 1) == 0)
    )


def _pipeline(facts: Facts, framework: Framework) -> dict[str, tuple[int, ...]]:
    """Schedules, chunks per device and how layers are dealt."""
    chunks = set(_divisors(facts.num_layers)) | set(_divisors(facts.num_layers + 2))
    most = max(1, min(_MAX_CHUNKS, facts.num_layers // 2))
    interleaves = framework in (Framework.MEGATRON, Framework.TORCHTITAN)
    pipelines = framework is not Framework.ACCELERATE
    other = int(Split.BY_COST if framework is Framework.NANOTRON else Split.BALANCED)
    return {
        "schedule": tuple(int(s) for s in _SCHEDULES[framework]),
        "vpp": tuple(sorted(c for c in chunks if c <= most)) if interleaves else (1,),
        "split": (int(Split.EVEN), other) if pipelines else (int(Split.EVEN),),
    }


# Schedules that a framework has by name, and what it can do with states.
_SCHEDULES: Mapping[Framework, tuple[Schedule, ...]] = {
    Framework.MEGATRON: (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
    Framework.TORCHTITAN: (
        Schedule.GPIPE,
        Schedule.ONE_F_ONE_B,
        Schedule.INTERLEAVED,
        Schedule.INTERLEAVED_ZB,
        Schedule.ZBV,
        Schedule.DUALPIPE_V,
    ),
    Framework.DEEPSPEED: (Schedule.ONE_F_ONE_B,),
    Framework.ACCELERATE: (Schedule.ONE_F_ONE_B,),
    Framework.NANOTRON: (Schedule.GPIPE, Schedule.ONE_F_ONE_B),
}
_ZERO: Mapping[Framework, tuple[int, ...]] = {
    Framework.MEGATRON: (0, 1, 2, 3),
    Framework.TORCHTITAN: (0, 2, 3),
    Framework.DEEPSPEED: (0, 1, 2, 3),
    Framework.ACCELERATE: (0, 2, 3),
    Framework.NANOTRON: (0, 1),
}
_BOTH = Offload.OPTIMIZER | Offload.PARAMETERS
_OFFLOAD: Mapping[Framework, tuple[Offload, ...]] = {
    Framework.MEGATRON: (Offload.NONE, Offload.OPTIMIZER),
    Framework.TORCHTITAN: (Offload.NONE, _BOTH),
    Framework.DEEPSPEED: (Offload.NONE, Offload.OPTIMIZER, _BOTH),
    Framework.ACCELERATE: (Offload.NONE, _BOTH),
    Framework.NANOTRON: (Offload.NONE,),
}
_CP_COMM: Mapping[Framework, tuple[CpComm, ...]] = {
    Framework.MEGATRON: (CpComm.P2P, CpComm.ALL_GATHER, CpComm.ALL_TO_ALL),
    Framework.TORCHTITAN: (CpComm.P2P, CpComm.ALL_GATHER),
    Framework.DEEPSPEED: (CpComm.P2P, CpComm.ALL_TO_ALL),
    Framework.ACCELERATE: (CpComm.P2P, CpComm.ALL_GATHER, CpComm.ALL_TO_ALL),
    Framework.NANOTRON: (CpComm.P2P, CpComm.ALL_GATHER),
}


def _states(facts: Facts, framework: Framework) -> dict[str, tuple[int, ...]]:
    """Sequence parallelism, context-parallel traffic, sharding and offload."""
    no_sp = framework in (Framework.DEEPSPEED, Framework.ACCELERATE)
    return {
        "sp": (0,) if no_sp else (0, 1),
        "cp_comm": tuple(int(c) for c in _CP_COMM[framework]),
        "zero": _ZERO[framework],
        "dp_replicate": _replicas(facts, framework),
        "offload": tuple(int(o) for o in _OFFLOAD[framework]),
        "offload_layers": (0,),
    }


def _replicas(facts: Facts, framework: Framework) -> tuple[int, ...]:
    """Replica groups of whole nodes.

    Megatron-LM shards over all replicas by habit; there the one other choice is to shard inside
    a node.
    """
    nodes = max(1, facts.num_gpus // facts.gpus_per_node)
    if framework in (Framework.NANOTRON, Framework.DEEPSPEED):
        return (1,)
    if framework is Framework.MEGATRON:
        return tuple(sorted({1, nodes}))
    return tuple(d for d in _divisors(nodes) if d in _REPLICAS or d == nodes)


def _recompute(facts: Facts, framework: Framework) -> tuple[tuple[Recompute, int], ...]:
    """Modes with the number of layers that full recompute covers."""
    modes = [Recompute.NONE]
    if framework is Framework.TORCHTITAN:
        modes.append(Recompute.SELECTIVE_OP)
    if framework is Framework.MEGATRON:
        modes += _megatron_modules(facts)
    pairs = [(mode, 0) for mode in modes]
    pairs.append((Recompute.FULL, 0))
    num_layers = 1
    while framework is Framework.MEGATRON and num_layers < facts.num_layers:
        pairs.append((Recompute.FULL, num_layers))
        num_layers *= 2
    return tuple(pairs)


def _megatron_modules(facts: Facts) -> list[Recompute]:
    """Sets of modules worth trying: those that published recipes use.

    Core attention is only worth it where scores are stored; a fused kernel does it by itself.
    """
    norm, mlp, experts = Recompute.NORM, Recompute.MLP, Recompute.MLP_ACTIVATION
    up_projection = Recompute.MLA_UP_PROJECTION
    # norms before plain attention and dense networks are part of the product behind them
    modes = [experts, norm | experts] if facts.is_moe else [mlp]
    if facts.has_latent_attention:
        modes += [] if facts.is_moe else [norm]
        modes += [up_projection, up_projection | (norm | experts if facts.is_moe else norm)]
        if facts.ffn_hidden:
            modes.append(up_projection | mlp)
    if facts.attention == "unfused":
        modes.append(Recompute.CORE_ATTENTION)
    return modes


def _divisors(number: int) -> tuple[int, ...]:
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *[number // d for d in small]}))
