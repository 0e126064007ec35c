"""Every option of an emitted nanotron config exists in nanotron, with a value of its type.

The options stand in ``tests/data/nanotron_options.json``, which ``tools/frameworks/
nanotron_options.py`` reads from the commit that the output is written for.
"""

import json
import re
from pathlib import Path

import pytest

from meshplan.emit.nanotron import NANOTRON, config
from meshplan.emit.records import Order
from meshplan.inputs.load.hf_config import load_model
from meshplan.space.complete import complete_plan
from meshplan.space.plan import CpComm, Framework, Recompute, Schedule
from space_scenarios import scenario

FACTS = json.loads((Path(__file__).parents[1] / "data" / "nanotron_options.json").read_text())
OPTIONS = FACTS["options"]
PLAIN = {"int": int, "float": float, "str": str, "bool": bool, "dict": dict, "Path": str}
# Types that are a choice of several dataclasses, and which one a value of ours is.
CHOICES = {
    "NanotronConfigs": lambda value: "Qwen2Config" if "is_qwen2_config" in value else "LlamaConfig",
    "Union[RandomInit, SpectralMupInit, ExistingCheckpointInit]": lambda value: "RandomInit",
    "Union[SGDOptimizerArgs, AdamWOptimizerArgs]": lambda value: (
        "SGDOptimizerArgs" if value["name"] == "sgd" else "AdamWOptimizerArgs"
    ),
}
PLANS = {
    "llama-3.1-8b": {"tp": 2, "pp": 2, "schedule": Schedule.ONE_F_ONE_B},
    "llama-2-7b": {"zero": 1, "recompute": Recompute.FULL},
    "qwen2.5-7b": {"cp": 2, "cp_comm": CpComm.P2P},
    "mistral-7b": {"tp": 8},
    "mixtral-8x7b": {"tp": 2},
    "llama-3.1-70b": {"cp": 2, "cp_comm": CpComm.ALL_GATHER},
}


def wrong(value, type_name, place):
    """Options of a value that are unknown or of another type."""
    optional = re.fullmatch(r"Optional\[(.*)\]", type_name)
    if optional:
        return [] if value is None else wrong(value, optional[1], place)
    many = re.fullmatch(r"List\[(.*)\]", type_name)
    if many:
        return [w for i, item in enumerate(value) for w in wrong(item, many[1], f"{place}[{i}]")]
    name = CHOICES[type_name](value) if type_name in CHOICES else type_name
    if name in OPTIONS:
        found = [f"{place}.{key}" for key in value if key not in OPTIONS[name]]
        for key, inner in value.items():
            if key in OPTIONS[name]:
                found += wrong(inner, OPTIONS[name][key], f"{place}.{key}")
        return found
    if name in PLAIN:
        kinds = (float, int) if PLAIN[name] is float else PLAIN[name]
        right = isinstance(value, kinds) and (name == "bool" or not isinstance(value, bool))
        return [] if right else [f"{place}: {value!r} is no {name}"]
    return []  # an enumeration, whose names the loader itself judges


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("model", PLANS)
def test_options_exist_and_have_their_types(model, optimizer):
    there = scenario(
        load_model(model), num_gpus=16, seq_len=4096, global_batch=64, optimizer=optimizer
    )
    plan = complete_plan(there, framework=Framework.NANOTRON, **PLANS[model])
    written = config(Order(scenario=there, plan=plan))
    assert wrong(written, "Config", "config") == []
    assert FACTS["commit"].startswith(NANOTRON.version.split()[-1])


def test_a_wrong_option_is_seen():
    bad = {"parallelism": {"dp": "4", "tensor": 2}, "tokens": {"sequence_length": True}}
    assert wrong(bad, "Config", "config") == [
        "config.parallelism.tensor",
        "config.parallelism.dp: '4' is no int",
        "config.tokens.sequence_length: True is no int",
    ]
