"""Condense the recipes behind published benchmark tables into ``validate/recipes.csv``.

usage: python tools/recipe_layouts.py MEGATRON_BRIDGE NEMO_LAUNCHER [--write]

Both arguments are clones with history. NVIDIA's tables print some settings of each run; the
recipe of the same release has them all. Read are Megatron-Bridge's ``scripts/performance/configs``
at the release branches and the launcher's ``examples/training`` with ``launcher_scripts/conf`` at
every commit that changed the table of examples. A recipe that stands unchanged in several releases
is one line. The recipes of Megatron-Bridge are executed (they import nothing but themselves).
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

TARGET = Path(__file__).resolve().parents[1] / "src" / "meshplan" / "validate" / "recipes.csv"
COLUMNS = (
    "releases", "model_key", "gpu", "precision", "num_gpus", "global_batch", "tp", "pp", "vpp",
    "cp", "ep", "micro_batch", "fsdp", "recompute_modules", "recompute_layers",
    "offload_layers",
)  # fmt: skip
RELEASES = ("r0.2.0", "r0.3.0", "r0.4.0")
MODELS = {
    "LLAMA3_8B": "llama3-8b",
    "LLAMA3_70B": "llama3-70b",
    "LLAMA31_405B": "llama3.1-405b",
    "DEEPSEEK_V3": "deepseek-v3",
    "QWEN3_30B_A3B": "qwen3-30b-a3b",
    "QWEN3_235B_A22B": "qwen3-235b-a22b",
    "GPT_OSS_120B": "gpt-oss-120b",
    "KIMI_K2": "kimi-k2",
    "gpt3/5b": "nemo-gpt3-5b",
    "gpt3/20b": "nemo-gpt3-20b",
    "gpt3/175b": "gpt3-175b",
    "llama/llama2_7b": "llama2-7b",
    "llama/llama2_13b": "llama2-13b",
    "llama/llama2_70b": "llama2-70b",
    "llama/llama3_8b": "llama3-8b",
    "llama/llama3_70b": "llama3-70b",
    "nemotron/nemotron_8b": "nemotron-8b",
    "nemotron/nemotron_22b": "nemotron-22b",
}
PRECISIONS = {
    "BF16": "bf16",
    "FP8_CS": "fp8",
    "FP8_SC": "fp8",
    "FP8_MX": "mxfp8",
    "NVFP4": "nvfp4",
}
LONG = {
    "num_gpus": "num_gpus",
    "global_batch": "global_batch_size",
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "micro_batch": "micro_batch_size",
}
EXTRAS = (
    "use_megatron_fsdp",
    "recompute_modules",
    "recompute_num_layers",
    "cpu_offloading_num_layers",
)
Recipe = dict[str, str]


class Clone:
    """A git repository read without a work tree."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.path), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else ""

    def files(self, commit: str, folder: str) -> list[str]:
        """Files of a folder at a commit."""
        return self._git("ls-tree", "-r", "--name-only", commit, folder).split()

    def read(self, commit: str, path: str) -> str:
        """Text of a file at a commit, empty where there is none."""
        return self._git("show", f"{commit}:{path}")

    def commits(self, path: str) -> list[str]:
        """Short names of all commits that changed a file."""
        return self._git("log", "--all", "--format=%H", "--", path).split()


def recipe(settings: dict[str, Any], *, model: str, gpu: str, precision: str) -> Recipe:
    """One line of the table."""
    line = {name: str(settings.get(name) or 1) for name in LONG}
    if line["pp"] == "1":
        line["vpp"] = "1"
    modules = settings.get("recompute_modules") or []
    return line | {
        "model_key": MODELS[model],
        "gpu": gpu,
        "precision": precision,
        "fsdp": str(int(bool(settings.get("use_megatron_fsdp")))),
        "recompute_modules": " ".join(modules),
        "recompute_layers": str(settings.get("recompute_num_layers") or 0),
        "offload_layers": str(settings.get("cpu_offloading_num_layers") or 0),
    }


def megatron_bridge(clone: Clone, release: str) -> Iterator[tuple[str, Recipe]]:
    """Recipes of a release."""
    utils = ModuleType("utils.utils")
    sys.modules["utils"], sys.modules["utils.utils"] = ModuleType("utils"), utils
    text = clone.read(release, "scripts/performance/utils/utils.py")
    exec(compile(text, "utils.py", "exec"), vars(utils))
    for path in clone.files(release, "scripts/performance/configs"):
        if not path.endswith("workload_base_configs.py"):
            continue
        module: dict[str, Any] = {}
        exec(compile(clone.read(release, path), path, "exec"), module)
        for name, record in module.items():
            found = re.fullmatch(
                r"(\w+?)_(?:PRETRAIN_CONFIG_)?(G?B[23]00|H100)_(\w+?)(?:_V\d|_BASE_CONFIG)?", name
            )
            if not (found and found[1] in MODELS and found[3] in PRECISIONS):
                continue
            given = {short: getattr(record, long) for short, long in LONG.items()}
            given |= {extra: getattr(record, extra, None) for extra in EXTRAS}
            line = recipe(given, model=found[1], gpu=found[2], precision=PRECISIONS[found[3]])
            yield f"megatron-bridge {release}", line


def launcher(clone: Clone) -> Iterator[tuple[str, Recipe]]:
    """Example scripts with the configuration that they name, at each state of their table."""
    for commit in clone.commits("examples/README.md"):
        for path in clone.files(commit, "examples/training"):
            found = re.search(r"/(h100|a100)/(?!fsdp)\w+\.sh$", path)
            text = clone.read(commit, path) if found else ""
            base = re.search(r"^training=(\S+)", text, re.MULTILINE)
            if not (found and base and base[1] in MODELS):
                continue
            config = clone.read(commit, f"launcher_scripts/conf/training/{base[1]}.yaml")
            document = yaml.safe_load(config)
            said = dict(re.findall(r"training\.(?:model|trainer)\.(\w+)=(\S+)", text))
            values = {**document["model"], **document["trainer"], **said}
            given = {short: int(values.get(long) or 1) for short, long in LONG.items()}
            given["num_gpus"] = int(values["num_nodes"]) * int(values["devices"])
            precision = "fp8" if str(values.get("fp8")).lower() == "true" else "bf16"
            line = recipe(given, model=base[1], gpu=found[1].upper(), precision=precision)
            yield f"nemo-launcher {commit[:8]}", line


def table(lines: Iterator[tuple[str, Recipe]]) -> str:
    """The recipes as CSV, equal ones of several releases on one line."""
    releases: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for release, line in lines:
        key = tuple(line[name] for name in COLUMNS[1:])
        if release not in releases[key]:
            releases[key].append(release)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for key, names in sorted(releases.items()):
        writer.writerow([";".join(sorted(names)), *key])
    return text.getvalue()


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bridge", type=Path)
    parser.add_argument("launcher", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    bridge = Clone(args.bridge)

    def lines() -> Iterator[tuple[str, Recipe]]:
        for release in RELEASES:
            yield from megatron_bridge(bridge, release)
        yield from launcher(Clone(args.launcher))

    text = table(lines())
    if args.write:
        TARGET.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
