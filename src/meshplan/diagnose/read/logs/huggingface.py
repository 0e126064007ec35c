"""Lines of the Hugging Face Trainer."""

from __future__ import annotations

import re

from meshplan.diagnose.read.logs.draft import Draft

__all__ = ["read_huggingface"]

_METRIC = re.compile(
    r"""['"]?\b(train_runtime|train_samples_per_second|train_steps_per_second|train_loss)['"]?"""
    r"""\s*[:=]\s*['"]?([0-9.]+(?:[eE][+-]?[0-9]+)?)(?![0-9:])"""
)
_NAMES = {
    "train_runtime": "runtime_s",
    "train_samples_per_second": "samples_per_s",
    "train_steps_per_second": "steps_per_s",
    "train_loss": "train_loss",
}
_LOSS = re.compile(r"""\{'loss':\s*'?([0-9.]+)""")
_START = {
    "micro_batch": re.compile(r"Instantaneous batch size per device = ([0-9,]+)"),
    "global_batch": re.compile(r"Total train batch size .*? = ([0-9,]+)"),
    "accumulation": re.compile(r"Gradient Accumulation steps = ([0-9,]+)", re.IGNORECASE),
    "num_steps": re.compile(r"Total optimization steps = ([0-9,]+)"),
    "num_examples": re.compile(r"Num examples = ([0-9,]+)"),
}
_BAR = re.compile(r"100%\|[^|]*\|\s*([0-9]+)/([0-9]+)\s*\[")
_OVERRIDES = {
    "num_layers": re.compile(r"\bn_layer=([0-9]+)"),
    "hidden": re.compile(r"\bn_embd=([0-9]+)"),
    "seq_len": re.compile(r"\bn_positions=([0-9]+)"),
}


def read_huggingface(line: str, draft: Draft) -> None:
    """Take what one line says: the summary holds the run, the other dicts hold losses alone."""
    found = dict(_METRIC.findall(line))
    for name, number in found.items():
        draft.totals.setdefault(_NAMES[name], float(number))
    if "train_runtime" in found:
        draft.lines["huggingface"] = draft.lines.get("huggingface", 0) + 1
        key = f"runtime_s.{draft.lines['huggingface']}"
        draft.totals.setdefault(key, float(found["train_runtime"]))
    if _LOSS.search(line):
        draft.totals["num_losses"] = draft.totals.get("num_losses", 0.0) + 1
    if " = " in line:
        for name, pattern in _START.items():
            match = pattern.search(line)
            if match is not None:
                draft.settings[name] = int(match[1].replace(",", ""))
    if "config_overrides" in line:
        for name, pattern in _OVERRIDES.items():
            match = pattern.search(line)
            if match is not None:
                draft.settings[name] = int(match[1])
    bar = _BAR.search(line)
    if bar is not None and bar[1] == bar[2]:
        draft.settings.setdefault("num_steps", int(bar[1]))
