"""A profile reaches every factor of the time model."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from cost_scenarios import grid, plan, scenario
from meshplan.cost.timed import Timed
from meshplan.cost.tuning import Tuning
from meshplan.cost.unit_time import tuning_of
from meshplan.inputs.load.profile import profile_of


def test_every_factor_follows_the_profile() -> None:
    """Changing a number of the profile changes the factor of that name, whichever it is."""
    case = scenario()
    profile = profile_of(case, "megatron")
    base = tuning_of(profile, case.cluster)
    for field in fields(Tuning):
        moved = []
        for part in ("framework", "cluster"):
            record = getattr(profile, part)
            if not hasattr(record, field.name):
                continue
            value = getattr(record, field.name)
            other = not value if isinstance(value, bool) else value + 0.125
            changed = replace(profile, **{part: replace(record, **{field.name: other})})
            found = tuning_of(changed, case.cluster)
            moved.append(getattr(found, field.name) != getattr(base, field.name))
        assert moved and all(moved), field.name


def test_a_slower_host_processor_launches_later() -> None:
    """Megatron-LM's tests, which the host decides, take 1.33 times as long on GB200 as on H100."""
    found = {}
    for cluster in ("64xH100", "64xB200", "64xGB200", "64xGB300", "64xGH200"):
        case = scenario(cluster=cluster)
        found[cluster] = tuning_of(profile_of(scenario(), "megatron"), case.cluster).launch_s
    assert found["64xB200"] == found["64xH100"] > 0
    for cluster in ("64xGB200", "64xGB300", "64xGH200"):
        assert found[cluster] == pytest.approx(1.33 * found["64xH100"])


def test_it_lengthens_what_a_step_and_a_micro_batch_cost_the_host() -> None:
    case, plans = scenario(cluster="64xGB200"), grid(plan())
    plain = replace(case, cluster=replace(case.cluster, host_time_factor=1.0))
    profile = profile_of(case, "megatron")
    slow, fast = (Timed.of(each, plans, profile).host_s(np.zeros(1))[0] for each in (case, plain))
    assert slow == pytest.approx(1.33 * fast) and fast > 0
