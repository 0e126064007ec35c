"""Scripts of the kinds that public repositories have, read with the eyes of their authors.

Each is written anew with the flags and figures of the script that it names; what ran there must not
be refused here, and what is off must not be made up.
"""

import pytest

from meshplan.app import service
from meshplan.check.build import assemble
from meshplan.check.read import read_files
from meshplan.cost.parameters import count_parameters
from meshplan.errors import UserError

# BigScience, train/tr11-176B-ml: BLOOM on 48 nodes, tied embeddings counted as layers, bf16
BLOOM = """#!/bin/bash
#SBATCH --nodes=48
#SBATCH --gres=gpu:8
ZERO_STAGE=0
OPTIONS=" \\
    --pp-partition-method 'type:transformer|embedding' \\
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 12 \\
    --num-layers 70 --hidden-size 14336 --num-attention-heads 112 \\
    --seq-length 2048 --micro-batch-size 2 --global-batch-size 2048 \\
    --bf16 --checkpoint-activations"
srun --jobid $SLURM_JOBID bash -c "python -m torch.distributed.run --nproc_per_node 8 \\
    --nnodes $SLURM_NNODES pretrain_gpt.py $OPTIONS \\
    --deepspeed --zero-stage $ZERO_STAGE --deepspeed-activation-checkpointing"
"""
# BigScience, train/tr1-13B-base: fp16, no embeddings among the stages
TR1 = """#!/bin/bash
deepspeed --num_nodes 64 --num_gpus 4 pretrain_gpt.py --deepspeed --zero-stage 1 \\
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 \\
    --num-layers 40 --hidden-size 5120 --num-attention-heads 32 --vocab-size 50257 \\
    --seq-length 2048 --micro-batch-size 1 --global-batch-size 1024 --fp16 \\
    --checkpoint-activations --attention-dropout 0.1 --hidden-dropout 0.1
"""
# Megatron-DeepSpeed, examples_deepspeed/MoE: 128 experts in every second layer, one for a token
DS_MOE = """#!/bin/bash
EP=64
deepspeed pretrain_gpt.py --deepspeed --zero-stage 0 --fp16 \\
    --num-experts 128 --moe-expert-parallel-size ${EP} --tensor-model-parallel-size 1 \\
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --vocab-size 50257 \\
    --seq-length 2048 --micro-batch-size 4 --global-batch-size 512 --checkpoint-activations
"""
# Megatron-DeepSpeed, deepspeed4science: tensor parallelism with Megatron's split sequences
DS_SP = """#!/bin/bash
deepspeed --num_nodes 8 --num_gpus 8 pretrain_gpt.py --deepspeed --zero-stage 0 --fp16 \\
    --tensor-model-parallel-size 8 --sequence-parallel \\
    --num-layers 48 --hidden-size 7168 --num-attention-heads 56 --vocab-size 50257 \\
    --seq-length 2048 --micro-batch-size 1 --global-batch-size 64 --checkpoint-activations
"""
# the same folder, Ulysses in its place
DS_ULYSSES = DS_SP.replace("--tensor-model-parallel-size 8 --sequence-parallel", "").replace(
    "--zero-stage 0", "--zero-stage 3 --ds-sequence-parallel-size 8"
)
# Megatron-LM, examples/megatron_fsdp: experts over nodes that the command line gives
MFSDP = """#!/bin/bash
EP=${EP:-8}
torchrun pretrain_gpt.py --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params \\
    --use-distributed-optimizer --expert-model-parallel-size ${EP} \\
    --expert-tensor-parallel-size 1 \\
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --num-experts 8 \\
    --moe-router-topk 2 --swiglu --disable-bias-linear --vocab-size 32000 --bf16 \\
    --moe-grouped-gemm --seq-length 4096 --micro-batch-size 1 --global-batch-size 128 \\
    --recompute-granularity selective --recompute-modules moe layernorm shared_experts \\
    --attention-dropout 0 --hidden-dropout 0 --ckpt-format fsdp_dtensor
"""
# Megatron-LM, examples/llama: fp8 with quoted pairs of words, a tokenizer that gives the vocabulary
LLAMA_FP8 = """#!/bin/bash
DTYPE="fp8"
MODEL=(--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
  --group-query-attention --num-query-groups 8 --kv-channels 128 --swiglu --vocab-size 128256
  --position-embedding-type rope --normalization RMSNorm --disable-bias-linear
  --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0)
NUMBERS=(--bf16)
if [[ "$DTYPE" == "fp8" ]]; then
  NUMBERS+=("--fp8-format hybrid" "--fp8-amax-history-len 1024" "--fp8-param-gather")
fi
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py ${MODEL[@]} ${NUMBERS[@]} \\
  --micro-batch-size 1 --global-batch-size 128 --seq-length 8192 --use-distributed-optimizer
"""
# Megatron-LM, examples/gptoss: as many stages as GPUs, and layers that do not divide
UNEVEN = LLAMA_FP8.replace("--num-layers 32", "--num-layers 12").replace(
    "--use-distributed-optimizer", "--use-distributed-optimizer --pipeline-model-parallel-size 8"
)
# MaxText, configs/gpu/a3: shards within hosts and replicas across them
A3 = """#!/bin/bash
python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml model_name=llama2-7b \\
    dcn_data_parallelism=16 ici_fsdp_parallelism=8 per_device_batch_size=4 \\
    max_target_length=4096 remat_policy=minimal_flash hardware=gpu
"""
LARGE = A3.replace("llama2-7b", "llama3.1-405b").replace("minimal_flash", "custom")
# Accelerate, examples/torch_native_parallelism: replicas of shards of split layers
TP_HSDP = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 2
  parallelism_config_tp_size: 2
"""
CP = TP_HSDP.replace("dp_replicate_size: 2", "cp_size: 8").replace(
    "dp_shard_size: 2", "dp_shard_size: 1"
)
CP = CP.replace("tp_size: 2", "tp_size: 1")
# nanotron, examples/doremi: Llama of 2.8 B
DOREMI = """parallelism: {dp: 8, pp: 1, tp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER}
tokens: {micro_batch_size: 16, batch_accumulation_per_replica: 4, sequence_length: 1024}
model:
  dtype: bfloat16
  model_config: {hidden_size: 4096, num_hidden_layers: 6, num_attention_heads: 32,
    num_key_value_heads: 32, intermediate_size: 24576, vocab_size: 49152, tie_word_embeddings: true}
optimizer: {zero_stage: 0}
"""


def judged(tmp_path, text, *, suffix="sh", **asked):
    path = tmp_path / f"run.{suffix}"
    path.write_text(text)
    return service.check({"files": [str(path)], "best": False, **asked})


def codes(found):
    return {f["code"] for f in found["findings"]}


JOB = {"job": {"seq_len": 4096, "global_batch": 64}, "model": "llama-3.1-8b"}


@pytest.mark.parametrize(
    ("text", "asked", "plan", "off"),
    [
        (
            BLOOM,
            {"cluster": "A100-80GB", "model": "bloom-176b"},
            # 72 units of a layer's weight on 12 stages; states are sharded though ZeRO is off
            {"tp": 4, "pp": 12, "dp": 8, "zero": 1, "split": "balanced"},
            set(),
        ),
        (TR1, {"cluster": "V100-32GB"}, {"tp": 2, "pp": 4, "dp": 32, "zero": 1}, None),
        (DS_MOE, {"cluster": "128xA100-40GB"}, {"ep": 64, "dp": 128, "num_micro_batches": 1}, None),
        (DS_SP, {"cluster": "A100-80GB"}, {"tp": 8, "dp": 8}, None),
        (DS_ULYSSES, {"cluster": "A100-80GB"}, {"cp": 8, "dp": 8, "cp_comm": "all-to-all"}, None),
        (MFSDP, {"cluster": "64xH100"}, {"ep": 8, "dp": 64, "zero": 3, "etp": 1}, None),
        (LLAMA_FP8, {"cluster": "H100"}, {"dp": 8, "zero": 1}, set()),
        (
            TP_HSDP,
            {"suffix": "yaml", "cluster": "H100", **JOB},
            {"tp": 2, "dp_replicate": 2},
            set(),
        ),
        (CP, {"suffix": "yaml", "cluster": "H100", **JOB}, {"cp": 8, "dp": 1}, None),
        (DOREMI, {"suffix": "yaml", "cluster": "H100"}, {"tp": 2, "dp": 8, "zero": 0}, set()),
    ],
)
def test_what_ran_is_legal(tmp_path, text, asked, plan, off):
    found = judged(tmp_path, text, **asked)
    assert found["legal"], found["problems"]
    assert {name: found["plan"][name] for name in plan} == plan
    if off is not None:
        assert codes(found) == off


def test_a_script_that_leaves_the_number_of_gpus_to_its_caller_asks_for_it(tmp_path):
    for text in (MFSDP, DS_MOE):
        with pytest.raises(UserError) as caught:
            judged(tmp_path, text, cluster="H100")
        assert [p.where for p in caught.value.problems] == ["cluster"]


def test_experts_of_megatron_deepspeed_stand_in_every_second_layer(tmp_path):
    (tmp_path / "run.sh").write_text(DS_MOE)
    reading = read_files([str(tmp_path / "run.sh")])
    model = assemble(reading, {"cluster": "128xA100-40GB"}).scenario.model
    # "1.3B+MoE-128" has 52 billion parameters (Rajbhandari et al. 2022, table 2)
    assert count_parameters(model).total == pytest.approx(52e9, rel=0.02)


def test_layers_that_do_not_divide_are_refused(tmp_path):
    found = judged(tmp_path, UNEVEN, cluster="H100")
    assert [p["code"] for p in found["problems"]] == ["rule_layers_are_dealt"]


def test_a_policy_that_maxtext_does_not_have_is_said(tmp_path):
    with pytest.raises(UserError) as caught:
        judged(tmp_path, A3, cluster="128xH100")
    assert [p.code for p in caught.value.problems] == ["check_unknown_value"]


def test_activations_on_the_host_are_said_to_be_uncounted(tmp_path):
    text = LARGE.replace("hardware=gpu", "decoder_layer_input=offload hardware=gpu")
    found = judged(tmp_path, text, cluster="128xH100")
    assert found["legal"] and "saves_uncounted" in codes(found)
    assert (found["plan"]["dp_shard"], found["plan"]["dp_replicate"]) == (8, 16)


ACCELERATE = """compute_environment: LOCAL_MACHINE
deepspeed_config:
  zero_stage: 3
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""


@pytest.mark.parametrize(
    ("right", "wrong", "code", "line"),
    [
        ("zero_stage: 3", "zero_stage: 4", "check_unknown_value", 3),
        ("num_machines: 2", "num_machines: 3", "check_contradiction", 7),
    ],
)
def test_values_that_accelerate_cannot_mean(tmp_path, right, wrong, code, line):
    path = tmp_path / "a.yaml"
    path.write_text(ACCELERATE)
    assert read_files([str(path)]).get("zero") == 3
    path.write_text(ACCELERATE.replace(right, wrong))
    with pytest.raises(UserError) as caught:
        read_files([str(path)])
    (problem,) = caught.value.problems
    assert problem.code == code
    assert problem.where.endswith(f":{line}")


def test_a_trainer_with_a_section_of_that_name_is_not_accelerate(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("base_model: x\nmicro_batch_size: 1\nfsdp_config:\n  fsdp_version: 2\n")
    with pytest.raises(UserError) as caught:
        read_files([str(path)])
    assert [p.code for p in caught.value.problems] == ["check_unknown_kind"]
