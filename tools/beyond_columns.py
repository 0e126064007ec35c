"""Published runs of models that the columns of a table cannot describe.

Megatron-Bridge performance summary, releases 25.11 to 26.04. gpt-oss has biases and clamped gates
in its experts; its rows are marked as contradicting themselves, since their TFLOP/s follow no
convention, while their tokens per second agree from release to release. Nemotron 3 mixes state
spaces, attention and experts. Both are predicted as their ``config.json`` says.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.model import Attention, Model, Moe
from meshplan.validate.rows import Case, read_case
from meshplan.validate.table import Skip, read_models, read_table

__all__ = ["beyond_columns"]

PRESETS = {
    "GPT OSS 120B": "gpt-oss-120b",
    "Nemotron_3_Nano": "nemotron-3-nano-30b-a3b",
    "Nemotron_3_Super": "nemotron-3-super-120b-a12b",
}

NUM_MTP = {"Nemotron_3_Super": 2}
"""Further tokens that the recipe predicts (``mtp_num_layers`` of ``nemotron_3_super.py``), each by
one attention and one mixture, with the same weights for all."""


def _as_trained(name: str) -> Model:
    """The model of a preset with what its recipe adds."""
    model = replace(load_model(PRESETS[name]), name=name)
    if name not in NUM_MTP:
        return model
    attention = next(each for each in model.layers if isinstance(each.mixer, Attention))
    experts = next(each for each in model.layers if isinstance(each.ffn, Moe))
    block = replace(attention, ffn=experts.ffn, num_norms=2, weight_set=model.num_layers)
    return replace(model, mtp_layers=(block,) * NUM_MTP[name])


def beyond_columns(runs: Path, models: Path) -> list[Case]:
    """Read the runs; a model bears the name that the table gives it."""
    known = read_models(models)
    # a mixture that columns can describe, in whose place the model of each row is put
    stand_in = next(row for row in known.values() if row.get("moe_experts") == "8")
    cases = []
    for row in read_table(runs, needs=()):
        if row["model"] in PRESETS:
            try:
                case = read_case(
                    {**row, "consistency": "ok"}, {**known, row["model_key"]: stand_in}
                )
            except Skip:
                continue  # some of them print another layout than their recipe
            model = _as_trained(row["model"])
            cases.append(replace(case, scenario=replace(case.scenario, model=model)))
    return cases
