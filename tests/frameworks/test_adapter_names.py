"""Names that emitted configs use, against the sources of the frameworks."""

import subprocess

import pytest

from meshplan.emit.hugging_face import ADAPTED_FAMILIES, PROJECTIONS

_COUNT = """
import re, sys
from pathlib import Path
import importlib.util
root = Path(importlib.util.find_spec("transformers").origin).parent / "models"
family = sys.argv[1]
folder = family.removesuffix("_text")
text = (root / folder / f"modeling_{folder}.py").read_text(encoding="utf-8")
print(*sorted(set(re.findall(r"self\\.(\\w+) = nn\\.Linear\\(", text))))
"""


@pytest.mark.parametrize("family", sorted(ADAPTED_FAMILIES["dense"] | ADAPTED_FAMILIES["moe"]))
def test_projections_are_called_so_in_transformers(python, family):
    found = subprocess.run(
        [python, "-c", _COUNT, family], capture_output=True, text=True, check=True
    ).stdout.split()
    parts = ("attention", "mlp") if family in ADAPTED_FAMILIES["dense"] else ("attention",)
    for part in parts:
        assert set(PROJECTIONS[part]) <= set(found), (family, part)
