"""Models of other families: the totals that their authors print."""

import json
from pathlib import Path
from typing import Any

import pytest

from meshplan.cost.parameters import count_parameters
from meshplan.inputs.load.hf_config import model_from_config

MODELS: dict[str, Any] = json.loads(
    Path(__file__).with_name("published_models.json").read_text(encoding="utf-8")
)["models"]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_total_is_the_published_one(name: str) -> None:
    model = model_from_config(MODELS[name]["config"], name=name)
    assert "model_generic" not in {code for code, _ in model.notes}
    total = count_parameters(model).total / 1e9
    assert total == pytest.approx(MODELS[name]["params_b"], rel=0.002)
