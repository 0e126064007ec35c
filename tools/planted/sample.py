"""Which runs are judged: bases, seeds, and the draw of faults for each.

There are two sets of bases with different models, devices, layouts and batches. Findings were
adjusted on the first; what is reported is the second, with seeds of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshplan.space.plan import Schedule
from planted.faults import Base, Built, Fault, build, cost_of, played, possible
from planted.logs import FIGURES, LOG_KINDS, slow_share
from planted.play import Played
from planted.write import Seen

__all__ = ["BASES", "ENTANGLED", "LEAST_COST", "Case", "Run", "cases", "make"]

LEAST_COST = 0.05
"""Share of the step below which a fault is not worth planting."""
_LEAST_OF_KIND = {"few_micro_batches": 0.10, "device_idle": 0.22, "low_utilization": 0.22}
"""Where the finding is defined to begin later: a bubble counts from a tenth of the step on, what
nothing explains and what samples show from a fifth on."""

BASES: dict[str, tuple[Base, ...]] = {
    "tune": (
        Base(
            name="70b-tp2-pp2",
            model="llama-2-70b",
            layers=8,
            cluster="8xH100",
            node=4,
            framework="megatron",
            plan={"tp": 2, "pp": 2, "stage_layers": (4, 4)},
            micro_batches=14,
        ),
        Base(
            name="70b-tp2-pp4",
            model="llama-65b",
            layers=19,
            cluster="8xH100",
            node=4,
            framework="megatron",
            plan={"tp": 2, "pp": 4, "stage_layers": (5, 5, 5, 4)},
            micro_batches=32,
        ),
        Base(
            name="65b-pp2-vpp2",
            model="llama-65b",
            layers=12,
            cluster="8xH100",
            node=4,
            framework="megatron",
            plan={
                "tp": 2,
                "pp": 2,
                "vpp": 2,
                "schedule": Schedule.INTERLEAVED,
                "stage_layers": (3, 3, 3, 3),
            },
            micro_batches=8,
        ),
        Base(
            name="8b-fsdp",
            model="llama-3.1-8b",
            layers=6,
            cluster="8xH100",
            node=4,
            framework="torchtitan",
            plan={"zero": 3, "dp_shard": 8},
            seq_len=8192,
            micro_batches=2,
        ),
        Base(
            name="mixtral-ep4",
            model="mixtral-8x7b",
            layers=4,
            cluster="8xH100",
            framework="megatron",
            plan={"ep": 4, "tp": 1, "zero": 1},
            micro_batches=3,
        ),
        Base(
            name="13b-tp4-dp2",
            model="llama-2-13b",
            layers=6,
            cluster="8xA100",
            node=4,
            framework="megatron",
            plan={"tp": 4, "zero": 1},
            micro_batches=3,
        ),
        Base(
            name="7b-dp8",
            model="llama-2-7b",
            layers=5,
            cluster="8xH100",
            node=4,
            framework="megatron",
            plan={"tp": 1, "zero": 1},
            micro_batches=2,
        ),
    ),
    "held": (
        Base(
            name="65b-tp4-pp2",
            model="llama-65b",
            layers=8,
            cluster="8xA100",
            node=4,
            framework="megatron",
            plan={"tp": 4, "pp": 2, "stage_layers": (4, 4)},
            seq_len=2048,
            micro_batches=16,
        ),
        Base(
            name="llama3-70b-tp2-pp2",
            model="llama-3.1-70b",
            layers=9,
            cluster="16xH200",
            node=8,
            framework="megatron",
            plan={"tp": 4, "pp": 2, "stage_layers": (5, 4)},
            micro_batches=12,
        ),
        Base(
            name="72b-tp2-pp2-vpp2",
            model="llama-2-70b",
            layers=8,
            cluster="8xB200",
            node=4,
            framework="megatron",
            plan={
                "tp": 2,
                "pp": 2,
                "vpp": 2,
                "schedule": Schedule.INTERLEAVED,
                "stage_layers": (2, 2, 2, 2),
            },
            micro_batches=8,
        ),
        Base(
            name="14b-fsdp16",
            model="qwen3-14b",
            layers=6,
            cluster="16xH100",
            framework="torchtitan",
            plan={"zero": 3, "dp_shard": 16},
            seq_len=8192,
            micro_batches=2,
        ),
        Base(
            name="32b-fsdp-tp2",
            model="qwen2.5-32b",
            layers=4,
            cluster="8xH200",
            node=4,
            framework="torchtitan",
            plan={"zero": 3, "tp": 2, "micro_batch": 4},
            seq_len=8192,
            micro_batches=2,
        ),
        Base(
            name="8x22b-ep8",
            model="mixtral-8x22b",
            layers=3,
            cluster="8xH200",
            framework="megatron",
            plan={"ep": 8, "tp": 1, "zero": 1},
            micro_batches=3,
        ),
        Base(
            name="neox-tp4-dp2",
            model="gpt-neox-20b",
            layers=6,
            cluster="8xH100",
            node=4,
            framework="megatron",
            plan={"tp": 4, "zero": 1},
            seq_len=2048,
            micro_batches=20,
        ),
        Base(
            name="mistral-dp8",
            model="mistral-7b",
            layers=5,
            cluster="8xA100",
            node=4,
            framework="megatron",
            plan={"tp": 1, "zero": 1},
            micro_batches=2,
        ),
        Base(
            name="8b-dp16",
            model="llama-3.1-8b",
            layers=6,
            cluster="16xH100",
            framework="megatron",
            plan={"tp": 1, "zero": 0},
            micro_batches=1,
        ),
        Base(
            name="13b-cp2-tp2",
            model="llama-2-13b",
            layers=5,
            cluster="8xH100",
            node=4,
            framework="torchtitan",
            plan={"tp": 2, "cp": 2, "zero": 3, "micro_batch": 2},
            seq_len=16384,
            micro_batches=2,
        ),
    ),
}

# Kinds that cannot stand side by side: one hides the other, or both change the same thing.
_APART = (
    {"host_bound", "straggler"},
    {"host_bound", "gradients_exposed"},
    {"host_bound", "expert_imbalance"},
    {"host_bound", "sharding_over_slow_network"},
    {"host_bound", "slow_nic"},
    {"host_bound", "slow_nvlink"},
    {"host_bound", "few_micro_batches"},
    {"host_bound", "stages_unbalanced"},
    {"host_bound", "memory_pressure"},
    {"host_bound", "tp_across_nodes"},
    {"host_bound", "recompute_not_needed"},
    {"slow_nic", "sharding_over_slow_network"},
    {"slow_nic", "tp_across_nodes"},
    {"slow_nvlink", "tp_across_nodes"},
    {"few_micro_batches", "stages_unbalanced"},
    # a run that asks for memory again and again needs its recompute
    {"memory_pressure", "recompute_not_needed"},
    {"host_bound", "device_idle"},
    # the host goes on launching while a copy runs, which makes up for launches that are late
    {"host_bound", "copies_exposed"},
)
_ALONE = ("low_utilization",)
"""Kinds that are looked for where there are no traces, so that nothing else is seen."""

ENTANGLED = (
    {"gradients_exposed", "slow_nic"},
    {"gradients_exposed", "slow_nvlink"},
    {"straggler", "slow_nic"},
    {"straggler", "slow_nvlink"},
    {"slow_nic", "slow_nvlink"},
    {"few_micro_batches", "memory_pressure"},
    {"straggler", "stages_unbalanced"},
    {"straggler", "few_micro_batches"},
    {"sharding_over_slow_network", "slow_nvlink"},
    {"memory_pressure", "slow_nic"},
    {"straggler", "sharding_over_slow_network"},
    {"recompute_not_needed", "slow_nic"},
    {"recompute_not_needed", "slow_nvlink"},
)
"""Kinds whose costs are not their own when they stand together: slower compute hides more of slow
traffic, as idle time does, and a stall falls into a bubble. They are planted together and have to
be found; what each of them costs then has no single answer and is not judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One planted run before it is played."""

    base: Base
    faults: tuple[Fault, ...]
    seed: int
    given: str
    dropped: str
    as_file: bool
    log: bool = False
    batched: bool = False

    @property
    def sampled(self) -> bool:
        """Whether samples of the GPUs are all that is given."""
        return any(fault.kind in _ALONE for fault in self.faults)


@dataclass(frozen=True, slots=True)
class Run:
    """A played case with what its faults cost."""

    case: Case
    built: Built
    played: Played
    seen: Seen
    costs: tuple[float, ...]


def cases(which: str, count: int, *, seed: int) -> Iterator[Case]:
    """Draw cases: a fifth healthy, the others with one to three faults."""
    rng = np.random.default_rng(seed)
    bases = BASES[which]
    used: dict[str, int] = {}
    for number in range(count):
        base = bases[number % len(bases)]
        # another step than that of the bases, so that each of them is healthy now and then
        turn = number + number // len(bases)
        kinds: list[str] = []
        if turn % 5:
            wanted = 1 + int(rng.choice(3, p=[0.5, 0.35, 0.15]))
            kinds = _draw(base, wanted, used, rng)
        faults = tuple(_fault(kind, base, rng) for kind in kinds)
        yield Case(
            base=base,
            faults=faults,
            seed=seed + 1000 + number,
            given=_given(kinds, rng),
            dropped=str(rng.choice(["", "", "purposes", "ranks", "rank"])),
            as_file=turn % 20 == 3,
            batched=base.framework == "megatron" and bool(rng.integers(2)),
            log=turn % 3 == 1 or bool(set(kinds) & set(LOG_KINDS)),
        )


def _given(kinds: list[str], rng: np.random.Generator) -> str:
    """What is handed over besides the traces: what a slow network is like nobody can guess."""
    choices = ["plan", "plan", "cluster", "nothing"]
    if "mfu_convention" in kinds:
        return "plan"  # FLOP cannot be counted again without the model
    return str(rng.choice(choices[:3] if "slow_nic" in kinds else choices))


def _draw(base: Base, wanted: int, used: dict[str, int], rng: np.random.Generator) -> list[str]:
    """Draw kinds, those that came up least first."""
    kinds: list[str] = []
    open_kinds = list(possible(base))
    while open_kinds and len(kinds) < wanted:
        weights = np.array([1.0 / (1 + used.get(kind, 0)) ** 2 for kind in open_kinds])
        kind = str(rng.choice(open_kinds, p=weights / weights.sum()))
        open_kinds.remove(kind)
        if kind in _ALONE:
            if kinds:
                continue
            open_kinds = []
        if not any({kind, other} in _APART for other in kinds):
            kinds.append(kind)
            used[kind] = used.get(kind, 0) + 1
    return kinds


_SIZES = {
    "host_bound": (1.5, 2.4),
    "data_loading": (0.1, 0.45),
    "memory_pressure": (0.1, 0.45),
    "device_idle": (0.3, 0.8),
    "copies_exposed": (0.08, 0.4),
    "low_utilization": (0.3, 0.8),
    "slow_nvlink": (2.5, 5.0),
}
"""Sizes of faults that have nothing else to draw."""


def _fault(kind: str, base: Base, rng: np.random.Generator) -> Fault:
    world = int(base.cluster.split("x")[0])
    uniform = rng.uniform
    if kind in _SIZES:
        return Fault(kind=kind, size=uniform(*_SIZES[kind]))
    if kind == "straggler":
        return Fault(kind=kind, size=uniform(1.15, 1.6), ranks=(int(rng.integers(world)),))
    if kind == "slow_steps":
        every = int(rng.choice([0, 4, 6, 8]))
        return Fault(kind=kind, size=uniform(1.6, 4.0), how=str(every or ""))
    if kind == "slow_nic":
        node = int(rng.integers(world // base.node))
        ranks = tuple(range(node * base.node, (node + 1) * base.node))
        return Fault(kind=kind, size=uniform(3.0, 8.0), ranks=ranks)
    if kind == "few_micro_batches":
        pp = int(base.plan["pp"])
        return Fault(kind=kind, size=float(pp * rng.integers(1, 3)))
    if kind == "stages_unbalanced":
        how = str(rng.choice(["first", "last", "mtp"]))
        return Fault(kind=kind, size=1.0, how="last" if how == "mtp" and base.layers % 2 else how)
    if kind == "sharding_over_slow_network":
        return Fault(kind=kind, how=str(rng.choice(["100GbE", "2x100GbE", "4x100GbE"])))
    if kind == "wrong_peak":
        # the rate with sparsity, that of fp8, or half of it as of a PCIe card
        return Fault(kind=kind, size=float(rng.choice([2.0, 0.765, 1.5])))
    if kind == "mfu_convention":
        long = base.seq_len >= 16384
        return Fault(kind=kind, how="causal" if long and rng.random() < 0.5 else "four_passes")
    if kind == "expert_imbalance":
        ep = int(base.plan["ep"])
        hot = tuple(range(int(rng.integers(ep)), world, ep))
        return Fault(kind=kind, size=uniform(1.5, 2.5), ranks=hot)
    return Fault(kind=kind)


def make(case: Case) -> Run | None:
    """Play a case; None when one of its faults costs too little to be worth a finding."""
    built = build(case.base, case.faults, seed=case.seed)
    run = played(built)
    costs = []
    for fault in case.faults:
        if fault.kind in FIGURES:
            costs.append(0.0)
            continue
        if fault.kind == "slow_steps":
            cost = slow_share(fault)
        else:
            cost = cost_of(case.base, case.faults, fault, run, seed=case.seed)
        if cost < _LEAST_OF_KIND.get(fault.kind, LEAST_COST):
            return None
        costs.append(cost)
    return Run(case, built, run, _seen(case, built), tuple(costs))


def _seen(case: Case, built: Built) -> Seen:
    rng = np.random.default_rng(case.seed + 5)
    device = built.scenario.cluster.device
    world = built.scenario.cluster.num_gpus
    return Seen(
        purposes=case.dropped != "purposes",
        group_ranks=case.dropped != "ranks",
        rank=case.dropped != "rank",
        offset_us=tuple(1e9 + rng.uniform(-5e3, 5e3, world)),
        device=_DEVICE_NAMES.get(device.name, device.name),
        gpus_per_node=built.scenario.cluster.gpus_per_node,
        memory_bytes=device.usable_bytes,
        reserved_bytes=built.reserved_share * device.usable_bytes,
        batched=case.batched and built.plan.pp > 1 and built.plan.vpp == 1,
    )


_DEVICE_NAMES = {
    "H100": "NVIDIA H100 80GB HBM3",
    "H200": "NVIDIA H200",
    "A100": "NVIDIA A100-SXM4-80GB",
    "B200": "NVIDIA B200",
}
