"""MaxText: its YAML on top of ``base.yml``, and the ``key=value`` words of a command.

MaxText's plans are judged as torchtitan's, which shards and splits alike (see
:mod:`meshplan.emit.maxtext`). A mesh may leave one axis within slices and one across them open
(-1), so that it becomes a plan once the number of GPUs is known.

References:
    1. ``maxtext/configs/pyconfig.py`` of 0.2.5: base, model, file and command, the later ones
       first; a key that no config has is refused.
    2. ``maxtext/configs/base.yml``: defaults, what each mesh axis shards (``logical_axis_rules``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

import yaml

from meshplan.check.documents import Values
from meshplan.check.foreign import nearest_key
from meshplan.check.maxtext_config import AXES, MAXTEXT, MODEL, Config, preset
from meshplan.check.records import ForeignKey, Reading, Setting
from meshplan.check.shell_words import UNKNOWN, Word
from meshplan.errors import ProblemList
from meshplan.inputs.load.presets import Loader
from meshplan.space.plan import Framework

__all__ = ["MAXTEXT", "maxtext_words", "on_mesh", "read_maxtext", "read_overrides"]

_TRAINER = re.compile(r"(?i)(?:.*\bmaxtext\b.*train.*|.*[./]pre_train[./]train(?:\.py)?)")
_OVERRIDE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def maxtext_words(found: Iterable[list[Word]]) -> list[Word] | None:
    """The command that trains with MaxText; None where there is none."""
    for words in found:
        texts = [word.text for word in words]
        if any(map(_TRAINER.fullmatch, texts)) and any(
            t.endswith((".yml", ".yaml")) for t in texts
        ):
            return words
    return None


def read_overrides(words: list[Word], *, file: str, problems: ProblemList) -> Reading:
    """Read the words of a training command, which count before any file."""
    at = next(i for i, word in enumerate(words) if word.text.endswith((".yml", ".yaml")))
    said: dict[str, Setting] = {}
    unknown = []
    for word in words[at + 1 :]:
        match, where = _OVERRIDE.fullmatch(word.text), f"{file}:{word.line}"
        if match is None:
            continue
        if UNKNOWN in match[2]:
            if match[1] in _told():
                unknown.append(Setting(value=match[1], where=where, spelled=match[1]))
        else:
            value = yaml.load(match[2], Loader) if match[2] else ""
            said[match[1]] = Setting(value=value, where=where, spelled=match[1])
    config = words[at].text.rsplit("/", 1)[-1].replace(UNKNOWN, "")
    base = config in ("base.yml", "base.yaml")
    named = () if base else (Setting(value=config, where=f"{file}:{words[at].line}", spelled="-"),)
    return replace(_reading(said, problems), named=named, unknown=tuple(unknown))


def read_maxtext(values: Values) -> Reading:
    """Read a YAML config; what a command says beside it counts before that."""
    keys = [key for key in values.data if values.raw(key) is not None]
    said = {key: replace(values.setting(key, values.raw(key)), soft=True) for key in keys}
    return _reading(said, values.problems)


def _told() -> set[str]:
    """Keys that a plan or a model is read from."""
    return {*preset()["defaults"], *MODEL, *(f"ici_{a}_parallelism" for a in AXES)}


def _reading(said: Mapping[str, Setting], problems: ProblemList) -> Reading:
    keys = preset()["keys"]
    foreign = tuple(
        ForeignKey(
            key=setting.spelled,
            where=setting.where,
            nearest=nearest_key(key, keys),
            framework=preset()["version"],
            refused=True,
            source=preset()["refuses"],
        )
        for key, setting in said.items()
        if key not in keys
    )
    return Reading(
        framework=Framework.TORCHTITAN,
        config=MAXTEXT,
        settings={f"maxtext.{key}": said[key] for key in said if key in keys},
        foreign=foreign,
    )


def on_mesh(reading: Reading, *, num_gpus: int | None, per_node: int) -> Reading:
    """Turn what files of MaxText say into fields of a plan, a job and a model.

    Args:
        reading: the files, joined.
        num_gpus: GPUs of the job; None where only the mesh could say.
        per_node: GPUs of a node, which is what MaxText calls a slice.

    Raises:
        UserError: for what MaxText refuses, with the line.
    """
    problems = ProblemList()
    for file in reading.named:
        # the base that all else is laid over: without it even the model would be a guess
        problems.add("check_needs_file", where=file.where, value=file.value)
    problems.raise_if_any()
    config = Config(reading, problems)
    world = num_gpus or config.product()
    settings = {n: s for n, s in reading.settings.items() if not n.startswith("maxtext.")}
    settings |= config.job()
    if world is not None:
        settings |= config.plan(world, per_node)
        settings.setdefault("num_gpus", Setting(value=world, where="-", spelled="-", soft=True))
    model = config.model()
    problems.raise_if_any()
    return replace(
        reading,
        settings=settings,
        model={**reading.model, **model},
        defaults=config.defaults,
        unmodelled=config.unmodelled(),
        uncounted=(*reading.uncounted, *config.uncounted()),
    )
