"""The number format of the matrix products, as a log states it."""

from __future__ import annotations

from collections.abc import Set

from meshplan.diagnose.read.logs.draft import Draft, pattern

__all__ = ["precision_of", "read_precision"]

# "  bf16 ........ True" and "  fp8 ........ hybrid" of Megatron, "bfloat16_enabled ... True" of
# DeepSpeed
_DUMPED = pattern(r"(?:^|\s)(fp16|bf16|bfloat16|fp8|fp4)(?:_enabled|_format|) \.{2,} ?(\S+)\s*$")
# "params_dtype ......... torch.bfloat16", "using torch.float16 for parameters"
_PARAMETERS = pattern(r"(?:params_dtype \.{2,} ?|using )torch\.(bfloat16|float16|half)\b")
# "--bf16", "--fp16 True", "--fp8-format hybrid" of Megatron and the Hugging Face Trainer,
# "--model.converters=float8" of torchtitan, "precision: amp_bf16" of Composer
_FLAG = pattern(r"(?:^|\s)--(bf16|fp16|fp8-format|fp4-format)(?:[ =]([^\s-]\S*))?(?=\s|$)")
_RECIPE = pattern(r"--fp8[-_]recipe[ =]+mxfp8\b")
_CONVERTER = pattern(r"converters[ =]+\S*?(float8|mxfp8|mx)\b")
_NAMED = pattern(r"\bprecision\s*[:=]\s*[\"']?(?:amp_|)(bf16|fp16|fp8)(?:[-_]mixed)?\b")
_OFF = frozenset({"false", "none", "0", "no", "off"})
_FORMATS = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8": "fp8",
    "fp8-format": "fp8",
    "mx": "mxfp8",
    "fp4": "nvfp4",
    "fp4-format": "nvfp4",
}
_NARROW = ("nvfp4", "mxfp8", "fp8")
"""Formats of products in a run whose other work has 16 bits, the narrowest first."""
_MARKS = ("16", "fp8", "fp4", "float8", "converters", "half")


def read_precision(line: str, draft: Draft) -> None:
    """Note the formats that one line states."""
    if not any(mark in line for mark in _MARKS):
        return
    for wanted in (_DUMPED, _FLAG):
        for name, value in wanted.findall(line):
            if value.strip("\"'").lower() not in _OFF:
                draft.formats.add(_FORMATS.get(name, name))
    for wanted in (_PARAMETERS, _CONVERTER, _NAMED):
        match = wanted.search(line)
        if match is not None:
            draft.formats.add(_FORMATS.get(match[1], match[1]))
    if _RECIPE.search(line):
        draft.formats.add("mxfp8")


def precision_of(formats: Set[str]) -> str:
    """Format of the products; empty when none is stated, or two that exclude each other."""
    narrow = next((name for name in _NARROW if name in formats), "")
    if narrow:
        return narrow
    return next(iter(formats)) if len(formats) == 1 else ""
