"""Shared fixtures."""

from pathlib import Path

import pytest

from shared_data import find_shared


@pytest.fixture(scope="session")
def shared() -> Path:
    """The measured data; the test is skipped with a reason where it is absent."""
    folder = find_shared()
    if folder is None:
        pytest.skip("measured data is absent: set MESHPLAN_SHARED or put it at ../shared")
    return folder
