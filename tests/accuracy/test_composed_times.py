"""Times that no run took: which they are, and that nothing is learned from them as from runs."""

from dataclasses import replace

import numpy as np
import pytest

import planted_path  # noqa: F401  (puts tools/ on the path)
from composed_times import num_on_a_line, parts_of
from fit_profiles import chosen, read_fits
from meshplan.validate.run import read_cases
from meshplan.validate.table import read_models, read_table
from profile_defaults import NO_RUNS


@pytest.fixture(scope="module")
def cases(shared):
    measured = shared / "data" / "measured"
    rows = read_table(measured / "runs.csv", needs=())
    found = read_cases(rows, read_models(measured / "models.csv"))[0]
    return [case for case in found if case.measured is not None]


def test_the_single_node_of_vtrain_was_put_together(cases):
    """Its times are affine in the number of micro-batches to the last digit; no other source's are.

    To the nanosecond they hold entries of the table of all-reduces that vTrain's own simulator
    reads (VIA-Research/vTrain@f8dda84, trace/a100): from 2 to 4 replicas of 24 blocks, 775 MiB of
    gradients, 5.5919 - 4.2069 ms; from 4 to 8, 6.3456 - 5.5919 ms.
    """
    composed = [case for case in cases if case.composed]
    runs = [case for case in cases if not case.composed]
    assert {case.source_id for case in composed} == {"vtrain"}
    assert max(case.scenario.cluster.num_gpus for case in composed) == 8
    assert min(c.scenario.cluster.num_gpus for c in runs if c.source_id == "vtrain") == 64
    triples, exact = num_on_a_line(composed)
    assert exact == triples > 300
    triples, exact = num_on_a_line(runs)
    assert triples > 20
    assert exact == 0
    step_s = {
        case.scenario.cluster.num_gpus: case.measured_step_s()
        for case in composed
        if (case.plan.tp, case.plan.pp, case.plan.micro_batch) == (1, 1, 1)
        and (case.scenario.model.num_layers, case.plan.num_micro_batches) == (24, 2)
    }
    assert step_s[4] - step_s[2] == pytest.approx(1.385e-3, abs=1e-9)
    assert step_s[8] - step_s[4] == pytest.approx(0.7537e-3, abs=1e-9)


def test_scatter_of_a_percent_is_no_line(cases):
    composed = [case for case in cases if case.composed]
    factors = np.exp(np.random.default_rng(0).normal(scale=0.01, size=len(composed)))
    scattered = [
        replace(case, measured=case.measured * factor)
        for case, factor in zip(composed, factors, strict=True)
    ]
    assert num_on_a_line(scattered)[1] == 0


def test_a_smaller_micro_batch_may_take_longer_there(cases):
    """TP 2: a block takes longer for two sequences than for four, by the one step profiled each.

    No model of kernels predicts that, so that it bounds how well these times can be predicted.
    """
    parts = parts_of([case for case in cases if case.composed])
    assert parts[2, 4][0] < 0.9 * parts[2, 2][0]


def test_they_are_fitted_apart_and_count_in_no_default(cases):
    for fit in read_fits():
        composed = {case.composed for case in chosen(fit, cases)}
        assert len(composed) == 1, f"{fit.name} mixes runs with times that no run took"
        if composed == {True}:
            assert {fit.framework, fit.cluster} <= set(NO_RUNS)
