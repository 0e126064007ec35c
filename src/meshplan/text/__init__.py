"""Sentences in English and Chinese.

The core speaks in codes and numbers. ``t(code, lang, **values)`` looks the code up in
``catalog/<lang>/*.json`` and fills the values in, each with the unit that its name ends in (see
:mod:`meshplan.text.quantity`).
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path

from meshplan.text.quantity import dress_all, one_of_many

__all__ = ["LANGUAGES", "catalog", "has", "t"]

LANGUAGES = ("en", "zh")

_BETWEEN_HAN = re.compile(r"(?<=[\u4e00-\u9fff]) (?=[\u4e00-\u9fff])")
_FOLDER = Path(__file__).parent / "catalog"


@lru_cache(maxsize=len(LANGUAGES))
def catalog(lang: str) -> dict[str, str]:
    """All sentences of one language by code; a code in two files is our own mistake."""
    sentences: dict[str, str] = {}
    for file in sorted((_FOLDER / lang).glob("*.json")):
        part: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
        twice = part.keys() & sentences.keys()
        assert not twice, f"codes in two catalogues: {sorted(twice)}"
        sentences.update(part)
    return sentences


def has(code: str, lang: str) -> bool:
    """Whether the language has a sentence for the code."""
    return code in catalog(lang)


def t(code: str, lang: str, /, **values: object) -> str:
    """Return the sentence for a code with its values filled in.

    Raises:
        KeyError: when the code or a value that the sentence mentions is missing (our mistake).
    """
    sentences = catalog(lang)
    if "os_reason" in values:
        values["os_reason"] = sentences.get(f"os.{values['os_reason']}", values["os_reason"])
    text = sentences[code].format(**dress_all(values))
    # a name that is filled in brings no blank with it where it meets Chinese
    return one_of_many(text) if lang == "en" else _BETWEEN_HAN.sub("", text)
