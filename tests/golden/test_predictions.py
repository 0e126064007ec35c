"""Predictions of 30 scenarios change only on purpose."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location(
    "golden_predictions", ROOT / "tools" / "golden_predictions.py"
)
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)
GOLDEN = json.loads(tool.GOLDEN.read_text("utf-8"))


def test_thirty_scenarios():
    assert len(tool.SCENARIOS) == 30
    assert GOLDEN.keys() == set(tool.SCENARIOS)


@pytest.mark.parametrize("line", tool.SCENARIOS)
def test_prediction_did_not_move(line):
    lines = tool.moved(GOLDEN[line], tool.predict(line))
    assert not lines, (
        "moved:\n  " + "\n  ".join(lines) + "\nif this is on purpose: "
        "python tools/golden_predictions.py --write, and say why in the change"
    )
