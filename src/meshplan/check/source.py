"""Files opened with care, and told apart by what they hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from meshplan.check.jobs import is_job
from meshplan.check.records import Source
from meshplan.check.torchtitan_module import is_torchtitan_module
from meshplan.check.unpack import plain_name, unpacked
from meshplan.diagnose.values import escaped
from meshplan.errors import UserError
from meshplan.inputs.load.opening import is_nameless, is_pipe, read_bytes

__all__ = ["Kind", "kind_of", "read_source"]

Kind = Literal[
    "shell",
    "deepspeed",
    "accelerate",
    "nanotron",
    "maxtext",
    "torchtitan_toml",
    "torchtitan_module",
    "torchtitan_schedule",
    "job",
]

MOST_BYTES = 1_000_000


def read_source(path: str) -> Source:
    """Read a file or a pipe as text.

    Raises:
        UserError: when it is no text of a sensible size.
    """
    try:
        packed = read_bytes(path, most_bytes=MOST_BYTES)
        whole = len(packed) <= MOST_BYTES
        raw = unpacked(packed, where=path, most_bytes=MOST_BYTES) if whole else packed
        if len(raw) > MOST_BYTES:
            raise UserError.of(
                "check_too_large",
                where=path,
                value=path,
                size_bytes=len(raw) if whole or is_pipe(path) else Path(path).stat().st_size,
                most_bytes=MOST_BYTES,
            )
    except IsADirectoryError:
        raise UserError.of("file_is_folder", where=path, value=path) from None
    except FileNotFoundError:
        raise UserError.of("file_missing", where=path, value=path) from None
    except (OSError, ValueError):
        raise UserError.of("file_unreadable", where=path, value=path) from None
    if b"\0" in raw:
        raise UserError.of("file_not_text", where=path, value=path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError.of("file_not_text", where=path, value=path) from None
    if not text.strip():
        raise UserError.of("check_empty", where=path, value=path)
    return Source(name=escaped(path), text=text.replace("\r\n", "\n"))


_SCHEDULE = re.compile(r"\d+[FBIW]\d+,")
# comments, and then a key that opens a mapping
_MAPPING = re.compile(r"(?:[ \t]*(?:#[^!].*|---)?\n)*[A-Za-z_][\w-]*:(?:[ \t]|\n)")
_SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm")
# one of them at least: trainers with configs of their own have a ``fsdp_config`` too
_ACCELERATE = ("distributed_type:", "parallelism_config:", "compute_environment:")
_MAXTEXT = ("base_config:", "per_device_batch_size:", "max_target_length:", "base_emb_dim:")
_MAXTEXT_AXES = ("ici_", "dcn_")
_NANOTRON = ("parallelism:", "tokens:")


def kind_of(source: Source) -> Kind:
    """Tell a file's kind by its name and contents.

    Raises:
        UserError: ``check_unknown_kind``.
    """
    name, text = plain_name((source.called or source.name).lower()), source.text
    start = text.lstrip()[:1]
    nameless = not source.called and is_nameless(source.name)
    is_module = name.endswith(".py") and is_torchtitan_module(text)
    if is_module or (nameless and "Trainer.Config(" in text):
        return "torchtitan_module"
    if name.endswith(".csv") and _SCHEDULE.match(text.lstrip()):
        return "torchtitan_schedule"
    if name.endswith(".json") or start == "{":
        return "deepspeed"
    if name.endswith(".toml") or re.search(r"^\[[a-z_.]+\]\s*$", text, re.MULTILINE):
        return "torchtitan_toml"
    if name.endswith((".yaml", ".yml")) or (nameless and _MAPPING.match(text)):
        lines = {line.split()[0] for line in text.splitlines() if line.split()}
        if is_job(lines):
            return "job"
        if any(key in lines for key in _ACCELERATE):
            return "accelerate"
        if all(key in lines for key in _NANOTRON):
            return "nanotron"
        if any(key in _MAXTEXT or key.startswith(_MAXTEXT_AXES) for key in lines):
            return "maxtext"
        raise UserError.of("check_unknown_kind", where=source.name, value=source.name)
    if name.endswith(_SCRIPTS) or re.search(r"(?<![\w-])--[a-zA-Z]", text):
        return "shell"
    raise UserError.of("check_unknown_kind", where=source.name, value=source.name)
