"""Text names of what a plan chooses: there and back, other spellings, close names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshplan.errors import UserError
from meshplan.inputs.load.axes import AXES_FIELDS
from meshplan.inputs.load.scenario import load_scenario
from meshplan.inputs.vocabulary import AXES
from meshplan.space.names import (
    axis_values,
    from_text,
    parse_recompute,
    recompute_pins,
    recompute_text,
    to_text,
)
from meshplan.space.plan import CpComm, Framework, Offload, Recompute, Schedule, Split

ENUMS = (Framework, Schedule, CpComm, Recompute, Offload, Split)


@pytest.mark.parametrize("kind", ENUMS)
def test_every_member_has_a_name_that_reads_back(kind: type[Schedule]) -> None:
    for member in kind.__members__.values():
        assert from_text(kind, to_text(member)) is member
        assert from_text(kind, to_text(member).upper().replace("-", "_")) is member
    assert len({to_text(member) for member in kind.__members__.values()}) == len(kind.__members__)


@given(st.integers(0, 2 * Recompute.FULL - 1), st.integers(0, 100))
def test_any_recompute_reads_back(bits: int, layers: int) -> None:
    mode = Recompute(bits)
    layers = layers if mode == Recompute.FULL else 0
    text = recompute_text(mode, layers=layers)
    assert parse_recompute(text, framework=Framework.MEGATRON) == (mode, layers)


@pytest.mark.parametrize(
    ("kind", "text", "member"),
    [
        (Schedule, "1F1B", Schedule.ONE_F_ONE_B),
        (Schedule, "Interleaved1F1B", Schedule.INTERLEAVED),
        (Schedule, "InterleavedZeroBubble", Schedule.INTERLEAVED_ZB),
        (Schedule, "ZBVZeroBubble", Schedule.ZBV),
        (Schedule, "DualPipeV", Schedule.DUALPIPE_V),
        (Schedule, "ZB-H2", Schedule.ZB_2P),
        (Schedule, "afab", Schedule.GPIPE),
        (CpComm, "ulysses", CpComm.ALL_TO_ALL),
        (CpComm, "a2a", CpComm.ALL_TO_ALL),
        (Framework, "Megatron-LM", Framework.MEGATRON),
        (Framework, "FSDP2", Framework.ACCELERATE),
        (Recompute, "layernorm+moe_act", Recompute.NORM | Recompute.MLP_ACTIVATION),
        (Recompute, "core_attn", Recompute.CORE_ATTENTION),
    ],
)
def test_spellings_of_the_frameworks(kind: type[Schedule], text: str, member: Schedule) -> None:
    assert from_text(kind, text) == member


def test_selective_means_what_the_framework_means() -> None:
    def read(framework: Framework) -> Recompute:
        return parse_recompute("selective", framework=framework)[0]

    assert read(Framework.MEGATRON) == Recompute.CORE_ATTENTION
    assert read(Framework.TORCHTITAN) == Recompute.SELECTIVE_OP


@pytest.mark.parametrize("text", ["full:0", "full:x", "full:", "none:3", "norm:2", "full:-1"])
def test_layers_of_recompute_are_checked(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_recompute(text, framework=Framework.MEGATRON)
    assert caught.value.problems[0].code == "bad_recompute_layers"


def test_close_names_are_suggested() -> None:
    with pytest.raises(UserError) as caught:
        from_text(Schedule, "interleavd", where="axes.schedule")
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("unknown_name", "axes.schedule")
    assert "interleaved" in str(problem.numbers["nearest"])
    assert set(problem.allowed) == {to_text(schedule) for schedule in Schedule}


def test_axes_of_a_scenario_become_codes() -> None:
    made = load_scenario(
        {
            "model": "llama-3.1-8b",
            "cluster": "8xH100",
            "job": {"seq_len": 4096, "global_batch": 8},
            "axes": {"tp": [1, 2], "sp": True, "schedule": ["GPipe", "zbv"], "cp_comm": "ring",
                     "recompute": ["none", "selective", "full:2"], "offload": "optimizer"},
        }
    )  # fmt: skip

    def codes(name: str, framework: Framework = Framework.MEGATRON) -> tuple[int, ...] | None:
        return axis_values(made.axes, name, framework=framework)

    assert codes("tp") == (1, 2) and codes("sp") == (1,)
    assert codes("schedule") == (Schedule.GPIPE, Schedule.ZBV)
    assert codes("offload") == (Offload.OPTIMIZER,)
    assert codes("pp") is None, "what is not pinned is free"
    assert codes("recompute") == (0, Recompute.CORE_ATTENTION, Recompute.FULL)
    assert codes("recompute", Framework.TORCHTITAN) == (0, Recompute.SELECTIVE_OP, Recompute.FULL)
    assert recompute_pins(made.axes["recompute"], framework=Framework.MEGATRON)[-1] == (
        Recompute.FULL,
        2,
    )


def test_axes_are_fields_of_a_plan() -> None:
    from dataclasses import fields

    from meshplan.space.plan import Plan

    plan = {field.name for field in fields(Plan)}
    assert set(AXES) <= plan
    # the framework has its own key, layers stand in ``full:4``, a layout is no axis
    assert plan - set(AXES) == {"framework", "recompute_layers", "stage_layers"}
    assert {field.name for field in AXES_FIELDS} == set(AXES)
