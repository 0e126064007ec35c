"""Shared fixtures, and how far the property tests look."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from shared_data import find_shared

# ``make test`` tries the same examples every time, so that a failure is of the change at hand;
# ``make explore`` tries new ones, and what it finds becomes an example or a test.
# How long a loaded machine takes for an example says nothing about it.
settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", settings.get_profile("same"), derandomize=False, print_blob=True
)
settings.load_profile("same")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The measured data; the test is skipped with a reason where it is absent."""
    folder = find_shared()
    if folder is None:
        pytest.skip("measured data is absent: set MESHPLAN_SHARED or put it at ../shared")
    return folder
