"""Where the measured data lies, if it is there at all."""

import os
from pathlib import Path


def find_shared() -> Path | None:
    """The folder of measured data: MESHPLAN_SHARED, or ``../shared`` beside the repository."""
    named = os.environ.get("MESHPLAN_SHARED")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared"
    return folder if (folder / "data").is_dir() else None
