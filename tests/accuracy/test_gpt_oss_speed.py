"""NVIDIA's runs of gpt-oss-120b, whose experts have biases and clamped gates.

Megatron-Bridge performance summary, releases 25.11 to 26.04. The table of runs marks them as
contradicting themselves, since their TFLOP/s follow no convention; their tokens per second agree
from release to release. Columns of a table cannot say what is special about the model, so that it
is taken from its ``config.json``.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from meshplan.inputs.load.hf_config import load_model
from meshplan.validate.predict import predict
from meshplan.validate.rows import read_case
from meshplan.validate.table import Skip, read_models, read_table


@pytest.fixture(scope="module")
def errors(shared):
    measured = shared / "data" / "measured"
    models = read_models(measured / "models.csv")
    model = load_model("gpt-oss-120b")
    cases = []
    for row in read_table(measured / "runs.csv", needs=()):
        if row["model"] == "GPT OSS 120B":
            try:
                case = read_case({**row, "consistency": "ok"}, models)
            except Skip:
                continue  # four of them print another layout than their recipe
            own = replace(model, name=case.scenario.model.name)
            cases.append(replace(case, scenario=replace(case.scenario, model=own)))
    found = defaultdict(list)
    for prediction in predict(cases, memory=False):
        found[prediction.case.scenario.cluster.device.name].append(prediction.error)
    print({name: [f"{error:+.1%}" for error in own] for name, own in found.items()})
    return found


def test_biases_of_experts_slow_hopper_down(errors):
    """Without them these runs are predicted 30 % too fast."""
    (hopper,) = (own for name, own in errors.items() if name.startswith("H100"))
    assert len(hopper) == 4
    assert np.max(np.abs(hopper)) < 0.08


def test_blackwell_is_predicted_too_fast_by_less_than_it_was(errors):
    """A miss: 11 to 38 %; without biases and clamps it was 25 to 56 %."""
    rest = [error for name, own in errors.items() if not name.startswith("H100") for error in own]
    assert len(rest) == 16
    assert min(rest) > 0.05
    assert max(rest) < 0.40
