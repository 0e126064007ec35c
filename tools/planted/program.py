"""What each rank of a plan launches in one step, in the order of its host.

A program is a list of operations. Compute kernels between two collectives form one operation
(:class:`Work`); a collective (:class:`Talk`) starts when its stream is free, after the compute
stream has come to the place where it was launched, and when its last member arrives. Compute goes
on when the talks that it waits for are over (:class:`Wait`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from meshplan.cost.behaviour import accumulated_bytes, training_vocab
from meshplan.cost.collectives import Collective
from meshplan.cost.communication import End, Network, pipeline_send
from meshplan.cost.communication.parts import trained_parameters_of
from meshplan.cost.kernels import Kernels
from meshplan.cost.operators import (
    Operator,
    ScoreProduct,
    embedding_operators,
    head_operators,
    layer_operators,
    shapes_of,
)
from meshplan.cost.operators.feed_forward import expert_rows
from meshplan.cost.optimizer import optimizer_time
from meshplan.cost.schedule.actions import Kind
from meshplan.cost.schedule.layout import layout_of_plan
from meshplan.cost.schedule.orders import device_programs
from meshplan.cost.tuning import Tuning
from meshplan.cost.unit_time import tuning_of
from meshplan.inputs.cluster import Cluster
from meshplan.inputs.load.profile import profile_of
from meshplan.inputs.model import Layer, Moe
from meshplan.inputs.scenario import Scenario
from meshplan.space.placement import AxisName, axis_group
from meshplan.space.plan import Plan, PlanGrid, Recompute
from planted.kernels import Kernel, Library
from planted.operations import Choices, Operation, Program, Talk, Wait, Work, with_stalls

__all__ = ["programs_of"]

_BYTES = {"BFloat16": 2, "Float": 4}


def programs_of(scenario: Scenario, plan: Plan, choices: Choices) -> tuple[Program, ...]:
    """One program per pipeline stage; the ranks of a stage share it."""
    writer = _Writer(scenario, plan, choices)
    return tuple(writer.stage(device) for device in range(plan.pp))


class _Writer:
    """Writes the programs of one plan."""

    def __init__(self, scenario: Scenario, plan: Plan, choices: Choices) -> None:
        self.scenario, self.plan, self.choices = scenario, plan, choices
        self.grid = PlanGrid.of([plan])
        profile = profile_of(scenario, plan.framework.name.lower())
        self.tuning: Tuning = replace(tuning_of(profile, scenario.cluster), expert_imbalance=1.0)
        self.shapes = shapes_of(scenario, self.grid, self.tuning)
        cluster = scenario.cluster
        precision = scenario.job.precision
        width = float(accumulated_bytes(scenario, self.grid)[0])
        times = Kernels(
            cluster.device, precision=precision, tuning=self.tuning, gradient_bytes=width
        )
        self.kernels = Library(times, cluster.device.name, precision)
        self.network = Network(cluster=cluster, tuning=self.tuning)
        inside = _one_node(cluster) if choices.tp_inside_node else cluster
        self.tp_network = Network(cluster=inside, tuning=self.tuning)
        self.layout = layout_of_plan(scenario.model, plan)
        self.handles = 0
        self.send_s = float(pipeline_send(scenario, self.grid, tuning=self.tuning).seconds[0])

    # -- one stage ---------------------------------------------------------------------------

    def stage(self, device: int) -> Program:
        """All that a rank of one stage launches in one step."""
        plan = self.plan
        program = device_programs(
            schedule=plan.schedule,
            pp=plan.pp,
            vpp=plan.vpp,
            num_micro_batches=plan.num_micro_batches,
        )[device]
        done: list[Operation] = []
        chunks = [chunk.virtual_stage for chunk in self.layout.chunks[device]]
        pending: list[int] = []
        # updated parameters of ZeRO-1 and 2 come in behind the first forward pass
        waits: dict[int, list[int]] = {}
        if plan.zero in (1, 2):
            for chunk in chunks:
                waits[chunk] = []
                for part in self.parts(chunk):
                    for talk in self.sharded(part, "all_gather"):
                        done.append(talk)
                        waits[chunk].append(talk.handle)
        last = {
            chunk: max(i for i, a in enumerate(program) if a[1] == chunk and a[0] != Kind.FORWARD)
            for chunk in chunks
        }
        for place, (kind, chunk, micro) in enumerate(program):
            if kind == Kind.FORWARD:
                done += self.receive(chunk, micro, ahead=True)
                done += self.forward(chunk, waits.pop(chunk, []))
                done += self.send(chunk, micro, ahead=True)
            else:
                done += self.receive(chunk, micro, ahead=False)
                reduce = place == last[chunk] and plan.zero != 3
                found, handles = self.backward(chunk, reduce=reduce)
                done += found
                pending += handles
                done += self.send(chunk, micro, ahead=False)
        if not self.choices.overlap_gradients and plan.zero != 3:
            for chunk in chunks:
                for part in reversed(self.parts(chunk)):
                    done += [replace(talk, handle=0) for talk in self.reduced(part)]
        done += [Wait(handle) for handle in pending]
        done.append(self.optimizer(device))
        return with_stalls(done, self.choices)

    def parts(self, chunk: int) -> list[Layer | End]:
        """Blocks and ends of a virtual stage, in model order."""
        model, stage = self.scenario.model, self.layout.virtual_stages[chunk][1]
        found: list[Layer | End] = [End.EMBEDDING] if stage.has_embedding else []
        found += model.layers[stage.first_layer : stage.first_layer + stage.num_layers]
        if stage.has_head:
            found += [*model.mtp_layers, End.HEAD]
        return found

    def forward(self, chunk: int, waits: list[int]) -> list[Operation]:
        """One forward pass of a virtual stage."""
        made: list[Operation] = []
        parts = self.parts(chunk)
        gathers = self._gathers(parts)
        for i, part in enumerate(parts):
            # the gather of the next part is launched before this one computes
            made += gathers.get(i + 1, []) if i else gathers.get(0, []) + gathers.get(1, [])
            if gathers:
                made += [Wait(talk.handle) for talk in gathers[i]]
            if waits:
                made += [Wait(h) for h in waits[: -(-len(waits) // (len(parts) - i))]]
                waits = waits[-(-len(waits) // (len(parts) - i)) :]
            made += self.one_forward(part, "forward")
        return made

    def backward(self, chunk: int, *, reduce: bool) -> tuple[list[Operation], list[int]]:
        """One backward pass of a virtual stage, and the handles of its reductions."""
        made: list[Operation] = []
        handles: list[int] = []
        parts = list(reversed(self.parts(chunk)))
        gathers = self._gathers(parts)
        full = bool(self.plan.recompute & Recompute.FULL) and not self.choices.no_recompute
        for i, part in enumerate(parts):
            made += gathers.get(i + 1, []) if i else gathers.get(0, []) + gathers.get(1, [])
            if gathers:
                made += [Wait(talk.handle) for talk in gathers[i]]
            if full and isinstance(part, Layer):
                made += self.one_forward(part, "recompute")
            made += self.one_backward(part)
            if self.plan.zero == 3 or (reduce and self.choices.overlap_gradients):
                talks = self.reduced(part)
                made += talks
                handles += [talk.handle for talk in talks]
        return made, handles

    def _gathers(self, parts: list[Layer | End]) -> dict[int, list[Talk]]:
        if self.plan.zero != 3:
            return {}
        return {i: self.sharded(part, "all_gather") for i, part in enumerate(parts)}

    # -- one block ---------------------------------------------------------------------------

    @lru_cache(maxsize=64)  # noqa: B019 - a writer lives as long as one plan is written
    def operators(self, part: Layer | End) -> tuple[tuple[Operator, ...], ...]:
        """Operators of a part, cut where collectives stand.

        For a block: norm and mixer, then norm and feed-forward network; for an end: all at once.
        """
        if part is End.EMBEDDING:
            return (tuple(embedding_operators(self.scenario.model, self.shapes)),)
        if part is End.HEAD:
            vocab = training_vocab(self.scenario, self.grid).astype(np.float64)
            return (tuple(head_operators(self.scenario.model, self.shapes, padded_vocab=vocab)),)
        assert isinstance(part, Layer)
        found = layer_operators(part, self.shapes)
        norms, rest = found[: part.num_norms], found[part.num_norms :]
        core = max(i for i, op in enumerate(rest) if isinstance(op, ScoreProduct))
        cut = core + 3  # the output projection and the residual follow the scores
        half = len(norms) // 2
        return (
            tuple(norms[:half]),
            tuple(rest[:cut]),
            tuple(norms[half:]),
            tuple(rest[cut:]),
        )

    def _kernels(self, operators: tuple[Operator, ...], *, back: bool) -> tuple[Kernel, ...]:
        made: list[Kernel] = []
        for operator in reversed(operators) if back else operators:
            made += self.kernels.backward(operator) if back else self.kernels.forward(operator)
        return tuple(made)

    @lru_cache(maxsize=64)  # noqa: B019
    def _forward_of(self, part: Layer | End, phase: str) -> tuple[Operation, ...]:
        if isinstance(part, End):
            work = Work(self._kernels(self.operators(part)[0], back=False), phase)
            return tuple([*self.tensor("in"), work] if part is End.HEAD else [work])
        norm, mixer, norm2, ffn = self.operators(part)
        made: list[Operation] = [Work(self._kernels(norm, back=False), phase)]
        made += self.tensor("in")
        made += self.context()
        made += [Work(self._kernels(mixer, back=False), phase), *self.tensor("out")]
        made.append(Work(self._kernels(norm2, back=False), phase))
        made += self._feed_forward(part, ffn, phase, back=False)
        return tuple(made)

    def one_forward(self, part: Layer | End, phase: str) -> list[Operation]:
        """Forward pass of one block or end."""
        return list(self._forward_of(part, phase))

    @lru_cache(maxsize=64)  # noqa: B019
    def _backward_of(self, part: Layer | End) -> tuple[Operation, ...]:
        if isinstance(part, End):
            work = Work(self._kernels(self.operators(part)[0], back=True), "backward")
            return tuple([work, *self.tensor("back")] if part is End.HEAD else [work])
        norm, mixer, norm2, ffn = self.operators(part)
        made = self._feed_forward(part, ffn, "backward", back=True)
        made.append(Work(self._kernels(norm2, back=True), "backward"))
        made += self.tensor("in")
        made += self.context()
        made += [Work(self._kernels(mixer, back=True), "backward"), *self.tensor("back")]
        made.append(Work(self._kernels(norm, back=True), "backward"))
        return tuple(made)

    def one_backward(self, part: Layer | End) -> list[Operation]:
        """Backward pass of one block or end."""
        return list(self._backward_of(part))

    def _feed_forward(
        self, part: Layer, ffn: tuple[Operator, ...], phase: str, *, back: bool
    ) -> list[Operation]:
        moe = isinstance(part.ffn, Moe)
        if not moe:
            work = Work(self._kernels(ffn, back=back), phase)
            return [*self.tensor("in"), work, *self.tensor("back" if back else "out")]
        first = next(i for i, op in enumerate(ffn) if op.name.startswith("expert_"))
        last = max(i for i, op in enumerate(ffn) if op.name.startswith("expert_")) + 1
        pieces = [ffn[:first], ffn[first:last], ffn[last:]]
        pieces = list(reversed(pieces)) if back else pieces
        works: list[Operation] = [Work(self._kernels(p, back=back), phase) for p in pieces]
        exchange = self.expert(part)
        return [works[0], *exchange, works[1], *exchange, works[2]]

    # -- collectives -------------------------------------------------------------------------

    def handle(self) -> int:
        """A new name for a talk that something waits for later."""
        self.handles += 1
        return self.handles

    def _talk(
        self,
        axis: str,
        group: AxisName,
        kind: Collective,
        elements: float,
        *,
        dtype: str = "BFloat16",
        network: Network | None = None,
        handle: int = 0,
    ) -> list[Talk]:
        placed = axis_group(self.grid, group)
        if int(placed.size[0]) == 1 or elements < 1:
            return []
        size = np.array([elements * _BYTES[dtype]])
        traffic = (network or self.network).collective(kind, placed, size)
        return [
            Talk(
                axis=axis,
                group=group,
                kind=kind.value,
                seconds=float(traffic.seconds[0]),
                elements=int(elements),
                dtype=dtype,
                handle=handle,
            )
        ]

    def tensor(self, place: str) -> list[Operation]:
        """Tensor-parallel collective before (``in``) or after a pair of split products."""
        elements = float(self.shapes.tokens[0]) * self.shapes.hidden
        if self.plan.sp:
            kind = Collective.ALL_GATHER if place == "in" else Collective.REDUCE_SCATTER
        elif place == "in":
            return []
        else:
            kind = Collective.ALL_REDUCE
        return list(self._talk("tp", "tp", kind, elements, network=self.tp_network))

    def context(self) -> list[Operation]:
        """Keys and values of the other parts of the sequence, gathered."""
        elements = float(self.shapes.tokens[0]) * self.plan.cp * self.shapes.hidden / 4
        return list(self._talk("cp", "cp", Collective.ALL_GATHER, elements))

    def expert(self, layer: Layer) -> list[Operation]:
        """Tokens to their experts, or back."""
        assert isinstance(layer.ffn, Moe)
        rows = float(np.ravel(expert_rows(layer.ffn, self.shapes))[0])
        elements = rows * layer.ffn.routed_dim(hidden=self.shapes.hidden) / self.plan.etp
        return list(self._talk("ep", "ep", Collective.ALL_TO_ALL, elements))

    def _parameters(self, part: Layer | End) -> tuple[float, float]:
        dense, expert = trained_parameters_of(self.scenario, part, self.grid)
        return float(dense[0]), float(expert[0])

    def sharded(self, part: Layer | End, kind: str) -> list[Talk]:
        """Gather of the parameters of a part."""
        made: list[Talk] = []
        dense, expert = self._parameters(part)
        for count, group in ((dense, "dp_shard_cp"), (expert, "edp_shard")):
            made += self._talk("dp", group, Collective(kind), count, handle=self.handle())
        return self._priced(made)

    def reduced(self, part: Layer | End) -> list[Talk]:
        """Reduction of the gradients of a part."""
        zero = self.plan.zero
        kind = Collective.REDUCE_SCATTER if zero else Collective.ALL_REDUCE
        dtype = "Float" if self.tuning.gradient_bytes == 4 else "BFloat16"
        made: list[Talk] = []
        dense, expert = self._parameters(part)
        groups: tuple[tuple[float, AxisName], ...] = (
            (dense, "dp_shard_cp" if zero else "dp_cp"),
            (expert, "edp_shard" if zero else "edp"),
        )
        for count, group in groups:
            made += self._talk("dp", group, kind, count, dtype=dtype, handle=self.handle())
        return self._priced(made)

    def _priced(self, talks: list[Talk]) -> list[Talk]:
        if self.plan.zero == 3 and self.choices.free_shards:
            return [replace(talk, seconds=1e-6) for talk in talks]
        return talks

    def optimizer(self, device: int) -> Work:
        """The optimizer step of a stage."""
        seconds = 0.0
        for chunk in self.layout.chunks[device]:
            for part in self.parts(chunk.virtual_stage):
                time = optimizer_time(self.scenario, part, self.grid, tuning=self.tuning)
                seconds += float(time[0])
        name = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>"
        return Work((Kernel(name, seconds / 8),) * 8, "optimizer")

    # -- pipeline ----------------------------------------------------------------------------

    def _hop(self, chunk: int, micro: int, *, ahead: bool, sends: bool) -> list[Operation]:
        """One end of a send across the border behind (``ahead``) a virtual stage."""
        if self.plan.pp == 1:
            return []
        border = chunk if ahead == sends else chunk - 1
        if border < 0 or border >= len(self.layout.virtual_stages) - 1:
            return []
        tokens = self.plan.micro_batch * self.scenario.job.seq_len / self.plan.cp
        elements = tokens * self.scenario.model.hidden / (self.plan.tp if self.plan.sp else 1)
        return [
            Talk(
                axis="pp",
                group="pp",
                kind="send" if sends else "recv",
                seconds=self.send_s,
                elements=int(elements),
                handle=self.handle() if sends else 0,
                key=(border, int(ahead), micro),
            )
        ]

    def send(self, chunk: int, micro: int, *, ahead: bool) -> list[Operation]:
        """Send what a pass made to the next stage that needs it."""
        return self._hop(chunk, micro, ahead=ahead, sends=True)

    def receive(self, chunk: int, micro: int, *, ahead: bool) -> list[Operation]:
        """Wait for what a pass needs."""
        return self._hop(chunk, micro, ahead=ahead, sends=False)


def _one_node(cluster: Cluster) -> Cluster:
    """The same devices inside one scale-up domain."""
    tier = replace(cluster.tiers[0], num_gpus=cluster.num_gpus)
    return replace(cluster, tiers=(tier,), gpus_per_node=cluster.num_gpus)
