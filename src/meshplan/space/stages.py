"""Which layers each pipeline stage holds.

A pipeline of ``pp`` devices with ``vpp`` chunks each has ``pp * vpp`` virtual stages in model
order. Looped schedules put virtual stage ``i`` on device ``i % pp``; V-shaped schedules (ZBV,
DualPipeV) go down and come back, so that device 0 holds the first and the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from meshplan.inputs.model import Mlp, Model
from meshplan.record import record
from meshplan.space.plan import Schedule, Split

__all__ = [
    "V_SHAPED",
    "Chunk",
    "StageLayout",
    "deal_layers",
    "dealing_costs",
    "representative_stages",
    "stage_layout",
]

V_SHAPED = frozenset({Schedule.ZBV, Schedule.DUALPIPE_V})


@record
class Chunk:
    """The layers of one virtual stage.

    Attributes:
        virtual_stage: position in model order.
        first_layer: index of the first layer.
        num_layers: number of layers.
        has_embedding: holds the input embedding.
        has_head: holds the final norm, the output head, the loss and the MTP blocks.
    """

    virtual_stage: int
    first_layer: int
    num_layers: int
    has_embedding: bool
    has_head: bool


@record
class StageLayout:
    """Chunks by device: ``chunks[stage][chunk]`` with ``pp`` stages of ``vpp`` chunks."""

    chunks: tuple[tuple[Chunk, ...], ...]

    @property
    def virtual_stages(self) -> tuple[tuple[int, Chunk], ...]:
        """``(device stage, chunk)`` in model order."""
        flat = [(stage, chunk) for stage, row in enumerate(self.chunks) for chunk in row]
        return tuple(sorted(flat, key=lambda item: item[1].virtual_stage))


def dealing_costs(model: Model) -> tuple[int, int]:
    """Cost of a block and of the head as nanotron weighs them: multiply-adds per token.

    Equation: ``4 h^2 + 3 h f`` per block, whatever its key heads and gates, and ``h V`` for the
    head [1]_.

    References:
        .. [1] nanotron src/nanotron/models/llama.py and qwen.py, ``get_block_compute_costs``.
    """
    ffn = next((layer.ffn for layer in model.layers if isinstance(layer.ffn, Mlp)), None)
    inner = ffn.ffn_hidden if ffn else 4 * model.hidden
    return 4 * model.hidden**2 + 3 * model.hidden * inner, model.hidden * model.vocab


def deal_layers(
    *,
    num_layers: int,
    num_stages: int,
    split: Split,
    num_mtp_layers: int = 0,
    costs: tuple[int, int] = (1, 0),
) -> tuple[int, ...] | None:
    """Deal layers to virtual stages, in model order.

    ``EVEN`` needs ``num_layers`` to be a multiple of ``num_stages``. ``BALANCED`` deals units:
    the embedding is the first, then the layers, then the MTP blocks and the head, all of which
    stay on the last stage. Units that are left over go to the latest stages before the last one,
    which hold the fewest micro-batches. The first and the last stage may be left without layers,
    as in Megatron-LM's layout ``Et|(tt|)*30mL`` of DeepSeek-V3. ``BY_COST`` fills a stage until
    all stages so far exceed their share of the whole, so that the last ones may be left with the
    head alone or with nothing [1]_.

    Args:
        num_layers: blocks of the decoder.
        num_stages: virtual stages.
        split: how they are dealt.
        num_mtp_layers: MTP blocks, which ``BALANCED`` counts to the last stage.
        costs: of a block and of the head, which ``BY_COST`` weighs (see :func:`dealing_costs`).

    Returns:
        Layers per virtual stage, or None when the split is impossible.

    References:
        .. [1] nanotron src/nanotron/models/base.py, ``build_model``.
    """
    if split is Split.BY_COST:
        return _by_cost(num_layers, num_stages, costs)
    if split is Split.EVEN:
        if num_layers % num_stages:
            return None
        return (num_layers // num_stages,) * num_stages
    if num_stages == 1:
        return (num_layers,)
    base, extra = divmod(num_layers + 2 + num_mtp_layers, num_stages)
    units = [base] * num_stages
    for i in range(extra):
        units[num_stages - 2 - i] += 1
    units[0] -= 1
    units[-1] -= 1 + num_mtp_layers
    return tuple(units) if base >= 1 and units[-1] >= 0 else None


def _by_cost(num_layers: int, num_stages: int, costs: tuple[int, int]) -> tuple[int, ...] | None:
    if num_stages > num_layers:
        return None
    block, head = costs
    whole = num_layers * block + head
    counts, stage = [0] * num_stages, 0
    for index in range(num_layers):
        counts[stage] += 1
        if (index + 1) * block * num_stages > whole * (stage + 1) and stage < num_stages - 1:
            stage += 1
    return tuple(counts)


@lru_cache(maxsize=4096)
def stage_layout(
    *,
    num_layers: int,
    pp: int,
    vpp: int,
    schedule: Schedule,
    split: Split,
    stage_layers: tuple[int, ...] = (),
    num_mtp_layers: int = 0,
    costs: tuple[int, int] = (1, 0),
) -> StageLayout | None:
    """Place the layers on the devices of the pipeline.

    Args:
        num_layers: blocks of the decoder.
        pp: devices of the pipeline.
        vpp: chunks per device.
        schedule: whether chunks loop or come back (V-shaped).
        split: how layers are dealt when no layout is given.
        stage_layers: explicit layers per virtual stage, in model order.
        num_mtp_layers: MTP blocks, which the balanced split counts to the last stage.
        costs: of a block and of the head (see :func:`dealing_costs`).

    Returns:
        The layout, or None when the layers cannot be dealt that way.
    """
    num_stages = pp * vpp
    dealt = stage_layers or deal_layers(
        num_layers=num_layers,
        num_stages=num_stages,
        split=split,
        num_mtp_layers=num_mtp_layers,
        costs=costs,
    )
    if dealt is None or len(dealt) != num_stages or sum(dealt) != num_layers:
        return None
    devices: list[list[Chunk]] = [[] for _ in range(pp)]
    first = 0
    for index, count in enumerate(dealt):
        chunk = Chunk(
            virtual_stage=index,
            first_layer=first,
            num_layers=count,
            has_embedding=index == 0,
            has_head=index == num_stages - 1,
        )
        looped = index % pp
        comes_back = schedule in V_SHAPED and (index // pp) % 2 == 1
        devices[pp - 1 - looped if comes_back else looped].append(chunk)
        first += count
    return StageLayout(chunks=tuple(tuple(row) for row in devices))


def representative_stages(layout: StageLayout, kinds: Sequence[object]) -> tuple[int, ...]:
    """Pick the devices that can hold the most: the first of each distinct composition.

    Devices with equal chunks differ only in their micro-batches in flight and in the embedding,
    which the first device holds. Micro-batches never grow along a looped pipeline, so that the
    first of them is the worst. In a V they shrink in one chunk and grow in the other, in equal
    steps, so that the first or the last is.

    Args:
        layout: layers by device.
        kinds: kind of each block of the model, in order.

    Returns:
        Device stages in order; stage 0 and the one with the head are always among them.
    """
    first: dict[object, int] = {}
    last: dict[object, int] = {}
    for stage, row in enumerate(layout.chunks):
        composition = tuple(
            (
                tuple(kinds[chunk.first_layer : chunk.first_layer + chunk.num_layers]),
                chunk.has_head,
            )
            for chunk in row
        )
        first.setdefault(composition, stage)
        last[composition] = stage
    comes_back = layout.chunks[0][-1].has_head
    return tuple(sorted({*first.values(), *(last.values() if comes_back else ())}))
