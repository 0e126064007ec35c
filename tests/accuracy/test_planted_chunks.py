"""Interleaved pipelines without a plan: what their passes say of each chunk."""

import pytest

import planted_path  # noqa: F401
from meshplan.diagnose.findings.chunks import passes_of_chunks
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.records import Context
from meshplan.diagnose.run import measure_run
from meshplan.space.plan import Schedule
from planted.faults import Fault
from planted.judge import judge, measured
from planted.operations import Work
from planted.sample import BASES, Case, make

BASE = next(base for base in BASES["tune"] if base.name == "65b-pp2-vpp2")


def _case(how, *, batched=False):
    faults = (Fault(kind="stages_unbalanced", size=1.0, how=how),)
    return Case(
        base=BASE, faults=faults, seed=11, given="nothing", dropped="", as_file=False,
        batched=batched,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("how", ["first", "last", "mtp"])
def test_uneven_chunks_cost_what_the_same_run_saves_without_them(how, batched):
    verdict = judge(_case(how, batched=batched))
    cost = verdict.planted["stages_unbalanced"]
    assert verdict.found["stages_unbalanced"] == pytest.approx(cost, rel=0.06)


@pytest.mark.slow
def test_passes_are_those_of_the_programs():
    run = make(_case("first"))
    facts = Facts(measure_run(list(measured(run, None))), Context())
    ahead, back = passes_of_chunks(facts, schedule=Schedule.INTERLEAVED, vpp=2, micro=8)
    # all chunks of a stage together compute what its program holds
    for stage, program in enumerate(run.played.programs):
        works = [op for op in program if isinstance(op, Work) and op.phase != "optimizer"]
        whole = sum(kernel.seconds for op in works for kernel in op.kernels) * 1e6
        own = slice(stage, None, 2)
        assert 8 * (ahead[own].sum() + back[own].sum()) == pytest.approx(whole, rel=0.02)
    assert ahead[0] > 1.2 * ahead[2]  # the first chunk holds a layer more
    other = passes_of_chunks(facts, schedule=Schedule.INTERLEAVED, vpp=2, micro=4)
    assert other is None  # the passes are not those of half as many micro-batches
