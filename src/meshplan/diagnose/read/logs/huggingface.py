"""Lines of the Hugging Face Trainer."""

from __future__ import annotations

import re

from meshplan.diagnose.read.logs.draft import Draft, pattern

__all__ = ["read_huggingface"]

_METRIC = pattern(
    r"""['"]?\b(train_runtime|train_samples_per_second|train_steps_per_second|train_loss)['"]?"""
    r"""\s*[:=]\s*['"]?<float>(?![0-9:])"""
)
_NAMES = {
    "train_runtime": "runtime_s",
    "train_samples_per_second": "samples_per_s",
    "train_steps_per_second": "steps_per_s",
    "train_loss": "train_loss",
}
_LOSS = pattern(r"""\{'loss':\s*'?<real>""")
_START = {
    "micro_batch": pattern(r"Instantaneous batch size per device = <commas>"),
    "global_batch": pattern(r"Total train batch size .*? = <commas>"),
    "accumulation": pattern(r"Gradient Accumulation steps = <commas>", re.IGNORECASE),
    "num_steps": pattern(r"Total optimization steps = <commas>"),
    "num_examples": pattern(r"Num examples = <commas>"),
}
_BAR = pattern(r"100%\|[^|]*\|\s*<count>/<count>\s*\[")
_OVERRIDES = {
    "num_layers": pattern(r"\bn_layer=<count>"),
    "hidden": pattern(r"\bn_embd=<count>"),
    "seq_len": pattern(r"\bn_positions=<count>"),
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
        for name, wanted in _START.items():
            match = wanted.search(line)
            if match is not None:
                draft.settings[name] = int(match[1].replace(",", ""))
    if "config_overrides" in line:
        for name, wanted in _OVERRIDES.items():
            match = wanted.search(line)
            if match is not None:
                draft.settings[name] = int(match[1])
    bar = _BAR.search(line)
    if bar is not None and bar[1] == bar[2]:
        draft.settings.setdefault("num_steps", int(bar[1]))
