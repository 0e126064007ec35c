"""What a person is told when no plan is legal at all."""

import pytest

from meshplan.app import service
from meshplan.errors import UserError


def asked(model: str, **changes: object) -> dict[str, object]:
    job = {"seq_len": 4096, "global_batch": 64, **changes}
    return {"model": model, "cluster": "8xH100", "job": job, "frameworks": ["megatron"]}


def test_a_framework_that_lacks_the_model_names_those_that_have_it():
    """Mamba 1 has no counterpart in Megatron-LM."""
    with pytest.raises(UserError) as raised:
        service.plan(asked("mamba-2.8b"))
    (problem,) = raised.value.problems
    assert problem.code == "rule_mixer_exists"
    assert problem.where == "scenario.framework"
    assert problem.allowed == ("deepspeed", "accelerate")


def test_a_task_that_the_framework_lacks():
    with pytest.raises(UserError) as raised:
        service.plan(asked("llama-3.1-8b", task="qlora", lora_rank=16))
    (problem,) = raised.value.problems
    assert problem.code == "rule_task_exists"
    assert problem.allowed == ("deepspeed", "accelerate")


def test_a_variant_leaves_no_other_framework():
    """Another framework would refuse the variant itself."""
    both = asked("llama-3.1-8b") | {"variant": "megatron+graph-layer+graph-attention"}
    with pytest.raises(UserError) as raised:
        service.plan(both)
    (problem,) = raised.value.problems
    assert problem.code == "rule_graphs_are_of_one_kind"
    assert problem.allowed == ()
