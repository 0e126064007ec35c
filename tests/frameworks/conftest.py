"""The interpreter of the frameworks' environment, which ``make test-frameworks`` sets up."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def python() -> str:
    """Its path; the test is skipped with a reason where there is none."""
    named = os.environ.get("MESHPLAN_FRAMEWORKS")
    if not named or not Path(named).exists():
        pytest.skip("the frameworks are not installed: run make test-frameworks")
    return str(Path(named).absolute())
