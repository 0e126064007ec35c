"""Layers of stages as Megatron-LM's options for uneven pipelines deal them.

They need the number of layers, which the files may leave to the model that is named beside them, so
that they are worked out once both are known.

References:
    1. ``megatron/core/transformer/transformer_config.py`` of 0.19.2 (``__post_init__``) and
       ``transformer_block.py`` (``get_num_layers_to_build``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshplan.check.records import Setting
from meshplan.errors import ProblemList
from meshplan.space.plan import Schedule

__all__ = ["STAGE_SETTINGS", "stage_fields"]

STAGE_SETTINGS = (
    "first_layers",
    "last_layers",
    "count_embedding",
    "count_loss",
    "layers_per_chunk",
    "dealt",
)


def stage_fields(
    settings: Mapping[str, Setting], *, num_layers: int, problems: ProblemList
) -> dict[str, Any]:
    """Plan fields that the options for stages lead to.

    Args:
        settings: what the files say, with any of ``STAGE_SETTINGS``.
        num_layers: layers of the model.
        problems: takes what does not divide.

    Returns:
        ``vpp`` and ``stage_layers`` where they follow from those options.
    """
    given = {name: settings[name] for name in STAGE_SETTINGS if name in settings}
    if not given or "stage_layers" in settings:
        return {}
    if dealt := given.pop("dealt", None):
        return _weighed(dealt, settings, num_layers=num_layers, problems=problems)
    pp, vpp = _count(settings.get("pp")), _count(settings.get("vpp"))
    fields: dict[str, Any] = {}
    if chunk := given.pop("layers_per_chunk", None):
        vpp = _chunks(chunk, num_layers=num_layers, pp=pp, problems=problems)
        fields = {"vpp": vpp}
        if vpp > 1:
            fields["schedule"] = Schedule.INTERLEAVED
    if not given or pp == 1:
        return fields
    per_stage = _per_stage(given, num_layers=num_layers, pp=pp, problems=problems, vpp=vpp)
    if per_stage is None:
        return fields
    return {**fields, "stage_layers": per_stage}


def _weighed(
    dealt: Setting, settings: Mapping[str, Setting], *, num_layers: int, problems: ProblemList
) -> dict[str, Any]:
    """Stages as torchtitan deals them: embedding and head count as layers, the first get the rest.

    References:
        1. ``torchtitan/distributed/pipeline_parallel.py`` of 0.3.0.
    """
    assert isinstance(dealt.value, tuple)
    first, last, each = dealt.value
    pp, vpp = _count(settings.get("pp")), _count(settings.get("vpp"))
    units = num_layers + first + last
    stages = -(-units // each) if each else pp * vpp
    if stages % pp:
        problems.add("check_stages_of_layers", where=dealt.where, value=each, stages=stages, pp=pp)
        return {}
    fields: dict[str, Any] = {"vpp": stages // pp} if each else {}
    base, extra = divmod(units, stages)
    if stages == 1:
        return fields
    counts = [base + (place < extra) for place in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    if min(counts) < 0 or max(first, last) > base:
        problems.add("check_ends_too_heavy", where=dealt.where, value=max(first, last), least=base)
        return {}
    return {**fields, "stage_layers": tuple(counts)}


def _count(setting: Setting | None) -> int:
    return setting.value if setting is not None and isinstance(setting.value, int) else 1


def _chunks(chunk: Setting, *, num_layers: int, pp: int, problems: ProblemList) -> int:
    size = _count(chunk)
    # rounded down as by old versions; the rules say what is lost
    vpp = max(1, num_layers // pp // size)
    if num_layers != vpp * size * pp:
        problems.add(
            "check_layers_lost",
            where=chunk.where,
            value=size,
            num_layers=num_layers,
            pp=pp,
            built=vpp * size * pp,
        )
    return vpp


def _per_stage(
    given: Mapping[str, Setting], *, num_layers: int, pp: int, problems: ProblemList, vpp: int
) -> tuple[int, ...] | None:
    """Layers of each virtual stage in model order; None where they do not divide."""
    first, last = given.get("first_layers"), given.get("last_layers")
    counted = [given[n] for n in ("count_embedding", "count_loss") if n in given]
    if (first or last) and counted:
        end = first or last
        assert end is not None
        problems.add(
            "check_contradiction",
            where=end.where,
            value=end.value,
            option=end.spelled,
            other=counted[0].spelled,
            other_value=counted[0].value,
        )
        return None
    if counted:
        return _counted(given, num_layers=num_layers, num_stages=pp * vpp, problems=problems)
    ends = {0: first, pp - 1: last}
    fixed = {rank: _count(end) for rank, end in ends.items() if end is not None}
    middle, rest = pp - len(fixed), num_layers - sum(fixed.values())
    where = first or last
    assert where is not None
    each = rest // middle if middle else 0
    ranks = [fixed.get(rank, each) for rank in range(pp)]
    if rest < 0 or each * middle != rest or any(count % vpp for count in ranks):
        problems.add(
            "check_uneven_ends", where=where.where, value=num_layers, rest=rest, stages=middle
        )
        return None
    # chunks of a rank are equal; virtual stages go round the ranks
    return tuple(count // vpp for count in ranks) * vpp


def _counted(
    given: Mapping[str, Setting], *, num_layers: int, num_stages: int, problems: ProblemList
) -> tuple[int, ...] | None:
    """Stages of equal weight where the embedding, the loss or both weigh as much as a layer."""
    at_start, at_end = "count_embedding" in given, "count_loss" in given
    total = num_layers + at_start + at_end
    if total % num_stages:
        setting = given["count_embedding" if at_start else "count_loss"]
        problems.add(
            "check_counted_ends",
            where=setting.where,
            value=setting.spelled,
            total=total,
            stages=num_stages,
        )
        return None
    stages = [total // num_stages] * num_stages
    stages[0] -= at_start
    stages[-1] -= at_end
    return tuple(stages)
