"""What is said about a framework on devices that it was not written for."""

from __future__ import annotations

import pytest

from meshplan.app import service
from meshplan.inputs.load.presets import device_names, device_preset
from meshplan.inputs.load.vendors import framework_notes, vendor_table
from meshplan.inputs.vocabulary import FRAMEWORKS
from meshplan.text import LANGUAGES, has

JOB = {"seq_len": 4096, "global_batch": 256}


def test_every_entry_has_a_source_and_every_source_an_entry():
    table = vendor_table()
    entries = [entry for vendor in table["vendors"].values() for entry in vendor.values()]
    used = {entry["source"] for entry in entries}
    assert used == set(table["sources"])
    frameworks = {name for vendor in table["vendors"].values() for name in vendor}
    assert frameworks <= {*FRAMEWORKS, "maxtext"}


def test_every_vendor_of_a_preset_is_known():
    vendors = {device_preset(name).device.vendor for name in device_names()}
    assert vendors - {"nvidia"} == set(vendor_table()["vendors"])


@pytest.mark.parametrize(
    ("vendor", "framework", "codes"),
    [
        ("nvidia", "megatron", []),
        ("other", "megatron", []),  # nothing is known of a device of one's own
        ("google", "megatron", ["framework_not_on_tpu"]),
        ("huawei", "megatron", ["framework_through"]),
        ("huawei", "nanotron", ["framework_not_on_device"]),
        ("amd", "deepspeed", []),
        ("intel", "torchtitan", ["framework_not_on_device"]),
    ],
)
def test_notes(vendor, framework, codes):
    assert [code for code, _ in framework_notes(vendor, [framework])] == codes
    for code in codes:
        assert all(has(f"assumed.{code}", lang) for lang in LANGUAGES)


def test_the_answer_says_so():
    request = {"model": "llama-3.1-8b", "cluster": "64xTPU-v5p", "job": JOB, "plan": {"zero": 3}}
    said = {a["code"]: a["value"] for a in service.estimate(request)["assumptions"]}
    assert said["framework_not_on_tpu"] == "megatron"
