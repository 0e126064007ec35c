"""A profile reaches every factor of the time model."""

from __future__ import annotations

from dataclasses import fields, replace

from meshplan.cost.tuning import Tuning
from meshplan.cost.unit_time import tuning_of
from meshplan.inputs.load.profile import cluster_profile, framework_profile
from meshplan.inputs.profile import Band, Profile


def test_every_factor_follows_the_profile() -> None:
    """Changing a number of the profile changes the factor of that name, whichever it is."""
    band = Band(base=0.1, communication=0.1, bubble=0.1, host=0.1, low=1.0)
    framework, cluster = framework_profile("megatron"), cluster_profile("default")
    base = tuning_of(Profile(framework=framework, cluster=cluster, band=band))
    for field in fields(Tuning):
        moved = []
        for record in (framework, cluster):
            if not hasattr(record, field.name):
                continue
            value = getattr(record, field.name)
            other = not value if isinstance(value, bool) else value + 0.125
            changed = replace(record, **{field.name: other})
            tuning = tuning_of(
                Profile(
                    framework=changed if record is framework else framework,
                    cluster=changed if record is cluster else cluster,
                    band=band,
                )
            )
            # host time is the product of both records
            if getattr(base, field.name) or record is framework:
                moved.append(getattr(tuning, field.name) != getattr(base, field.name))
        assert moved and all(moved), field.name
