"""A profile reaches every factor of the time model."""

from __future__ import annotations

from dataclasses import fields, replace

from cost_scenarios import scenario
from meshplan.cost.tuning import Tuning
from meshplan.cost.unit_time import tuning_of
from meshplan.inputs.load.profile import profile_of


def test_every_factor_follows_the_profile() -> None:
    """Changing a number of the profile changes the factor of that name, whichever it is."""
    profile = profile_of(scenario(), "megatron")
    base = tuning_of(profile)
    for field in fields(Tuning):
        moved = []
        for part in ("framework", "cluster"):
            record = getattr(profile, part)
            if not hasattr(record, field.name):
                continue
            value = getattr(record, field.name)
            other = not value if isinstance(value, bool) else value + 0.125
            changed = replace(profile, **{part: replace(record, **{field.name: other})})
            moved.append(getattr(tuning_of(changed), field.name) != getattr(base, field.name))
        assert moved and all(moved), field.name
