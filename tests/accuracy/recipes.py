"""Official launch recipes as plans of ours."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from meshplan.inputs.load.hf_config import load_model, model_names
from meshplan.inputs.scenario import Scenario
from meshplan.space.complete import complete_plan
from meshplan.space.plan import CpComm, Framework, Plan, Recompute, Split
from space_scenarios import scenario

__all__ = [
    "PRESETS",
    "Recipe",
    "arguments_of",
    "read_recipes",
    "rows_of",
    "settings_of",
    "stage_layers_of",
]

DATA = Path(__file__).resolve().parents[1] / "data"

# Recipe name -> preset, where the two spell a model differently.
PRESETS = {
    "deepseek_v2_lite": "deepseek-v2-lite",
    "exaone4_1p2b": "exaone-4.0-1.2b",
    "exaone_moe_236b_a23b": "k-exaone-236b-a23b",
    "gemma2_2b": "gemma-2-2b",
    "gemma4_e4b": "gemma-4-e4b",
    "glm52": "glm-5.2",
    "glm45_355b": "glm-4.5",
    "glm45_air_106b": "glm-4.5-air",
    "gemma2_27b": "gemma-2-27b",
    "gemma2_9b": "gemma-2-9b",
    "gemma3_1b": "gemma-3-1b",
    "llama2_7b": "llama-2-7b",
    "llama31_405b": "llama-3.1-405b",
    "llama31_70b": "llama-3.1-70b",
    "llama31_8b": "llama-3.1-8b",
    "llama32_1b": "llama-3.2-1b",
    "llama32_3b": "llama-3.2-3b",
    "llama3_70b": "llama-3.1-70b",
    "llama3_8b": "llama-3.1-8b",
    "moonlight_16b": "moonlight-16b-a3b",
    "nemotron_3_nano": "nemotron-3-nano-30b-a3b",
    "nemotron_3_super": "nemotron-3-super-120b-a12b",
    "nemotron_3_ultra": "nemotron-3-ultra-550b-a55b",
    "nemotronh_47b": "nemotron-h-47b",
    "nemotronh_4b": "nemotron-h-4b",
    "nemotronh_56b": "nemotron-h-56b",
    "nemotronh_8b": "nemotron-h-8b",
    "olmoe_7b": "olmoe-1b-7b",
    "qwen25_14b": "qwen2.5-14b",
    "qwen25_1p5b": "qwen2.5-1.5b",
    "qwen25_32b": "qwen2.5-32b",
    "qwen25_500m": "qwen2.5-0.5b",
    "qwen25_72b": "qwen2.5-72b",
    "qwen25_7b": "qwen2.5-7b",
    # recipes of these names build the model of another (megatron-bridge 0.6.2,
    # recipes/nemotronh/*/nemotron_3_nano.py), or one of the same dimensions
    "nemotron_3_5_lightning": "nemotron-3-nano-30b-a3b",
    "nemotron_3_nano_gb200": "nemotron-3-nano-30b-a3b",
    "qwen2_1p5b": "qwen2.5-1.5b",
    "qwen2_500m": "qwen2.5-0.5b",
    "qwen2_72b": "qwen2.5-72b",
    "qwen2_7b": "qwen2.5-7b",
    # flavours of torchtitan 0.3.0
    "deepseek_v3_16b": "deepseek-v2-lite",
    "deepseek_v3_16b_hybridep": "deepseek-v2-lite",
    "deepseek_v3_16b_minimal_async_ep": "deepseek-v2-lite",
    "deepseek_v3_671b": "deepseek-v3",
    "qwen3_0_6b": "qwen3-0.6b",
    "qwen3_1_7b": "qwen3-1.7b",
    "qwen3_1p7b": "qwen3-1.7b",
    "qwen3_600m": "qwen3-0.6b",
}
_PRECISIONS = {"fp8cs": "fp8", "fp8sc": "fp8", "fp8mx": "mxfp8", "nvfp4": "nvfp4"}
_MODULES = {
    "core_attn": Recompute.CORE_ATTENTION,
    "layernorm": Recompute.NORM,
    "moe_act": Recompute.MLP_ACTIVATION,
    "mlp": Recompute.MLP,
    "moe": Recompute.MOE,
    "mla_up_proj": Recompute.MLA_UP_PROJECTION,
    "mhc": Recompute.NONE,  # hyper-connections, which no model record has
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One row: its name, what it is for and the plan, or why there is none."""

    name: str
    reason: str
    scenario: Scenario | None = None
    plan: Plan | None = None


def read_recipes(shared: Path) -> Iterator[Recipe]:
    """Read all rows that name a number of GPUs and a batch."""
    for row in rows_of(shared):
        yield _read(row)


def rows_of(shared: Path) -> list[dict[str, str]]:
    """All rows as they stand in the file."""
    path = shared / "data" / "recipes" / "official_recipes.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


_FLAGS = {
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
    "etp": "--expert-tensor-parallel-size",
    "mbs": "--micro-batch-size",
    "gbs": "--global-batch-size",
    "seq": "--seq-length",
}


@cache
def _settings() -> dict[str, dict[str, str]]:
    with (DATA / "recipe_settings.csv").open(encoding="utf-8", newline="") as file:
        return {row["recipe"]: row for row in csv.DictReader(file)}


def settings_of(row: dict[str, str]) -> dict[str, str]:
    """What the recipe sets beside the columns of the table; empty where it is all default.

    ``tests/data/recipe_settings.csv`` was read from the recipes of megatron-bridge 0.6.2 as they
    run, 400 of 417, and for DeepSeek-V4-Pro and GLM-5.2 as they are written; the others are taken
    as default.
    """
    return {k: v for k, v in _settings().get(row["recipe"], {}).items() if v and k != "recipe"}


def arguments_of(row: dict[str, str]) -> str:
    """A recipe as arguments of Megatron-LM, as a person would keep it in a script."""
    words = [f"{flag} {row[name]}" for name, flag in _FLAGS.items() if row[name]]
    layout = _layout(row)
    if layout:
        stages = "|".join("t" * count for count in layout)
        words.append(f"--pipeline-model-parallel-layout 'E{stages}L'")
    elif row["vpp"]:
        words.append(f"--num-virtual-stages-per-pipeline-rank {row['vpp']}")
    words += _more_arguments(settings_of(row))
    if row["sp"] == "True" and row["tp"] != "1":
        words.append("--sequence-parallel")
    if row["fsdp"] == "True":
        words.append("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params")
    elif row["dist_opt"] == "True":
        words.append("--use-distributed-optimizer")
    if row["recompute"] == "full":
        layers = settings_of(row).get("recompute_layers")
        method = f"block --recompute-num-layers {layers}" if layers else "uniform"
        words.append(f"--recompute-granularity full --recompute-method {method}")
    modules = [m for m in row["recompute_modules"].split(";") if m and m != "mhc"]
    if row["recompute"] == "selective" and modules:
        words.append(f"--recompute-granularity selective --recompute-modules {' '.join(modules)}")
    precision = _PRECISIONS.get(row["precision"])
    words.append("--bf16 --attention-dropout 0 --hidden-dropout 0")
    if precision in ("fp8", "mxfp8"):
        recipe = "mxfp8" if precision == "mxfp8" else "tensorwise"
        words.append(f"--fp8-format hybrid --fp8-recipe {recipe}")
    if precision == "nvfp4":
        words.append("--fp4-format e2m1")
    if "muon" in row["recipe"]:
        words.append("--optimizer muon")
    return "torchrun pretrain_gpt.py \\\n  " + " \\\n  ".join(words) + "\n"


def _layout(row: dict[str, str]) -> tuple[int, ...]:
    """Layers of each virtual stage, in the table or worked out by the recipe as it runs."""
    worked_out = settings_of(row).get("stage_layers", "")
    return stage_layers_of(row["pp_layout"]) or tuple(map(int, filter(None, worked_out.split(";"))))


def _more_arguments(more: dict[str, str]) -> list[str]:
    words = []
    if "ends_count" in more:
        words.append("--account-for-embedding-in-pipeline-split")
        words.append("--account-for-loss-in-pipeline-split")
    for end in ("first", "last"):
        if f"{end}_layers" in more:
            words.append(f"--decoder-{end}-pipeline-num-layers {more[f'{end}_layers']}")
    if "cp_comm" in more:
        words.append(f"--cp-comm-type {more['cp_comm']}")
    if "rounds" in more:
        words.append(f"--microbatch-group-size-per-virtual-pipeline-stage {more['rounds']}")
    if "offload_layers" in more:
        words.append(f"--cpu-offloading-num-layers {more['offload_layers']}")
    return words


def _read(row: dict[str, str]) -> Recipe:
    name = row["recipe"]
    if not row["gpus"]:
        return Recipe(name=name, reason="no number of GPUs")
    if row["source"].startswith("nanotron"):
        return Recipe(name=name, reason="dimensions of a toy model")
    preset = PRESETS.get(row["model"], row["model"].replace("_", "-"))
    if preset not in model_names():
        return Recipe(name=name, reason=f"no preset for {row['model']}")
    there = scenario(
        load_model(preset),
        num_gpus=int(row["gpus"]),
        gpus_per_node=4 if "gb" in row["hw"] else 8,
        seq_len=int(row["seq"]),
        global_batch=int(row["gbs"]),
        precision=_PRECISIONS.get(row["precision"], "bf16"),
        optimizer="muon" if "muon" in name else "adamw",
    )
    if there.job.precision == "fp8":
        # scales of the tensors themselves, or of blocks of them; no recipe has delayed ones
        there = replace(there, variant="megatron+tensorwise")
    return Recipe(name=name, reason="", scenario=there, plan=_plan(row, there))


def _plan(row: dict[str, str], there: Scenario) -> Plan:
    tp, pp = int(row["tp"]), int(row["pp"])
    more = settings_of(row)
    layers = _layout(row)
    vpp = len(layers) // pp if layers else int(row["vpp"] or 1)
    ep, etp = int(row["ep"] or 1), row["etp"]
    given = {
        "tp": tp,
        "pp": pp,
        "vpp": max(vpp, 1),
        "cp": int(row["cp"]),
        "ep": ep,
        # Megatron-LM takes tp when nothing is said
        "etp": (int(etp) if etp else tp) if there.model.is_moe else 1,
        "sp": row["sp"] == "True" and tp > 1,  # switched off by the arguments when tp is 1
        "micro_batch": int(row["mbs"]),
        "zero": 3 if row["fsdp"] == "True" else int(row["dist_opt"] == "True"),
        "recompute": _recompute(row),
        "recompute_layers": int(more.get("recompute_layers", 0)),
        "offload_layers": int(more.get("offload_layers", 0)),
        "stage_layers": layers or _ends(there, more, pp),
        "split": Split.BALANCED if "ends_count" in more and pp > 1 else Split.EVEN,
        "cp_comm": CpComm.ALL_TO_ALL if more.get("cp_comm") == "a2a" else CpComm.P2P,
    }
    return complete_plan(there, framework=Framework.MEGATRON, **given)


def _ends(there: Scenario, more: dict[str, str], pp: int) -> tuple[int, ...]:
    """Layers of each stage where the first or the last one is stated."""
    stated = {0: more.get("first_layers"), pp - 1: more.get("last_layers")}
    fixed = {rank: int(count) for rank, count in stated.items() if count}
    if not fixed:
        return ()
    rest = (there.model.num_layers - sum(fixed.values())) // (pp - len(fixed) or 1)
    return tuple(fixed.get(rank, rest) for rank in range(pp))


def _recompute(row: dict[str, str]) -> Recompute:
    if row["recompute"] == "full":
        return Recompute.FULL
    mode = Recompute.NONE
    if row["recompute"] == "selective":
        for module in filter(None, row["recompute_modules"].split(";")):
            mode |= _MODULES[module]
    return mode


def stage_layers_of(layout: str) -> tuple[int, ...]:
    """Layers per virtual stage of a Megatron-LM layout: a list of names, or ``Et|(tt|)*30mL``."""
    if not layout:
        return ()
    if layout.startswith("["):
        return tuple(part.count("decoder") for part in layout[1:-1].split("]"))[:-1]
    spelled = re.sub(r"\(([^)]*)\)\*(\d+)", lambda m: m[1] * int(m[2]), layout)
    spelled = re.sub(r"t\*(\d+)", lambda m: "t" * int(m[1]), spelled)
    return tuple(part.count("t") for part in spelled.split("|"))
