"""What would make a job fit, in words: each setting with its value before and after."""

import pytest

from meshplan.app.sentences import remedy_text

PLAN = {
    **dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "etp", "dp_replicate", "micro_batch"), 1),
    "dp": 8,
    "zero": 3,
    "dp_shard": 8,
    "framework": "accelerate",
    "sp": False,
    "offload": "none",
    "offload_layers": 0,
    "recompute": "full",
}


@pytest.mark.parametrize(
    ("lang", "start"),
    [
        ("en", "task lora instead of pretrain and framework accelerate instead of megatron: "),
        ("zh", "任务由 pretrain 改为 lora，框架由 megatron 改为 accelerate："),
    ],
)
def test_another_job_names_each_setting(lang, start):
    item = {
        "kind": "job",
        "before": {"task": "pretrain", "framework": "megatron"},
        "after": {"task": "lora", "framework": "accelerate"},
        "plan": PLAN,
        "peak_bytes": 6e10,
        "step_time_s": 1.2,
    }
    assert remedy_text(item, lang).startswith(start)
