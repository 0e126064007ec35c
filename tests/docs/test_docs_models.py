"""The page about models names every family that is read."""

import re
from pathlib import Path

import pytest

from meshplan.inputs.load.hf_families import FAMILIES
from meshplan.text import LANGUAGES

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_family_is_named(lang: str) -> None:
    page = (DOCS / lang / "models.md").read_text(encoding="utf-8")
    assert set(FAMILIES) <= set(re.findall(r"`([^`\n]+)`", page))
