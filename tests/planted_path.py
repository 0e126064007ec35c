"""Makes ``tools/planted``, the player of runs with planted faults, importable in tests."""

import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1] / "tools"
sys.path.insert(0, str(TOOLS))
