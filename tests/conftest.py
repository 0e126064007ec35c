"""Shared fixtures: where the measured data lies, if it is there at all."""

import os
from pathlib import Path

import pytest


def find_shared() -> Path | None:
    """The folder of measured data: MESHPLAN_SHARED, or ``../shared`` beside the repository."""
    named = os.environ.get("MESHPLAN_SHARED")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared"
    return folder if (folder / "data").is_dir() else None


@pytest.fixture(scope="session")
def shared() -> Path:
    """The measured data; the test is skipped with a reason where it is absent."""
    folder = find_shared()
    if folder is None:
        pytest.skip("measured data is absent: set MESHPLAN_SHARED or put it at ../shared")
    return folder
