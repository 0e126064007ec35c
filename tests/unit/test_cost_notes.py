"""What is said of devices for which nothing was measured."""

from __future__ import annotations

import pytest

from cost_scenarios import scenario
from meshplan.cost.notes import time_assumptions
from meshplan.text import LANGUAGES, t


@pytest.mark.parametrize(
    "cluster,precision,codes",
    [
        ("8xH100", "bf16", []),
        ("8xH100", "fp8", []),
        ("8xV100-32GB", "fp16", ["kernels_of_sibling", "collectives_of_sibling"]),
        ("8xL40S", "bf16", ["collectives_of_sibling"]),
        ("8xMI300X", "bf16", ["kernels_of_sibling", "collectives_of_sibling"]),
        ("8xA100-80GB", "bf16", []),
    ],
)
def test_stand_ins_are_named(cluster: str, precision: str, codes: list[str]) -> None:
    found = time_assumptions(scenario(cluster=cluster, precision=precision))
    assert [code for code, _ in found] == codes
    for code, value in found:
        for lang in LANGUAGES:
            assert value in t(f"assumed.{code}", lang, value=value)
