"""What is told without a plan: number formats, micro-batches, and sends that state no group."""

import numpy as np
import pytest

import planted_path  # noqa: F401
from meshplan.app import service
from meshplan.diagnose.findings import places
from meshplan.diagnose.findings.facts import Facts
from meshplan.diagnose.findings.records import Context
from meshplan.diagnose.findings.rounds import Turns, _readings, rounds_of
from meshplan.diagnose.names import product_precision
from meshplan.diagnose.pipeline_group import listed_pipeline
from meshplan.diagnose.rank import measure_rank
from meshplan.diagnose.read.log import read_log
from meshplan.diagnose.run import measure_run
from planted.faults import Fault, build, played
from planted.sample import BASES
from planted.write import Seen, rank_trace


@pytest.mark.parametrize(
    ("kernel", "precision"),
    [
        # names as profilers show them: cuBLASLt, cuBLAS, CUTLASS, Tensile, DeepGEMM
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "bf16"),
        ("nvjet_sm100_hsh_64x8_64x16_1x1_h_bz_splitK_NNT", "fp16"),
        ("nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", "fp8"),
        ("nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT", "mxfp8"),
        ("nvjet_ootst_256x128_Avec16UE4M3_Bvec16UE4M3_TNT", "nvfp4"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "bf16"),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", "fp16"),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "bf16"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128", "fp8"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>", "tf32"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x64>", "fp16"),
        ("ampere_sgemm_32x32_sliced1x4_tn", "fp32"),
        ("Cijk_Ailk_Bjlk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x128x16_MI16x16x1", "bf16"),
        ("Cijk_Alik_Bljk_F8BS_BH_Bias_HA_S_SAB_SAV_UserArgs_MT256", "fp8"),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1", "fp32"),
        ("deep_gemm::sm90_fp8_gemm_1d2d_impl", "fp8"),
        # attention stays in 16 bits where products do not, and what is no product says nothing
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, cutlass::bfloat16_t> >", None),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::BFloat16>", None),
        ("triton_mm", None),
    ],
)
def test_number_format_of_a_product(kernel, precision):
    assert product_precision(kernel) == precision


@pytest.mark.parametrize(
    ("line", "precision"),
    [
        ("  bf16 ............................................ True", "bf16"),
        ("  fp16 ............................................ False", ""),
        ("using torch.float16 for parameters ...", "fp16"),
        ("[INFO] [config.py:1000:print]   bfloat16_enabled ............. True", "bf16"),
        ("torchrun pretrain_gpt.py --bf16 --fp8-format hybrid", "fp8"),
        ("torchrun pretrain_gpt.py --fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8"),
        ('run_train.sh --model.converters="float8"', "fp8"),
        ("precision: amp_bf16", "bf16"),
        ("  accumulate_allreduce_grads_in_fp32 .............. True", ""),
    ],
)
def test_number_format_that_a_log_states(tmp_path, line, precision):
    path = tmp_path / "train.log"
    step = "iteration: 3 / 100 | elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 90K"
    path.write_text(f"{line}\n{step}\n")
    assert read_log(path).precision == precision


TITAN = """[titan] 02:41:33,634 - root - INFO - CUDA capacity: {device} with 79.18GiB memory
[titan] 02:41:34,634 - root - INFO - Peak FLOPS used for computing MFU: {peak}
""" + "".join(
    f"[titan] 2026-01-16 02:42:{step:02d},000 - root - INFO - step: {step}  loss: 9.0  "
    "memory: 42.20GiB(53.27%)  tps: 7,000  tflops: 400.00  mfu: {mfu:.2f}%\n"
    for step in range(1, 9)
)


def wrong_peak(tmp_path, *, device, peak, **more):
    path = tmp_path / "train.log"
    path.write_text(TITAN.format(device=device, peak=peak, mfu=40000e12 / float(peak)))
    result = service.diagnose({"paths": [str(path)], **more})
    (check,) = [c for c in result["checks"] if c["code"] == "wrong_peak"]
    return check["state"], result["findings"]


def test_a_log_alone_names_its_device_and_its_peak(tmp_path):
    # torchtitan falls back to the peak of an A100 for a card that it does not know
    state, (one,) = wrong_peak(tmp_path, device="NVIDIA H100 80GB HBM3", peak="3.120e+14")
    assert (state, one["numbers"]["what"]) == ("found", "device")
    state, found = wrong_peak(tmp_path, device="NVIDIA H100 80GB HBM3", peak="9.890e+14")
    assert (state, found) == ("clear", [])


@pytest.fixture(scope="module")
def pipelines():
    """Measures of a pipeline by schedule and by how it sends, without a plan."""
    cache = {}

    def make(name, micro, *, batched, dropped=""):
        key = (name, micro, batched, dropped)
        if key not in cache:
            base = next(b for b in BASES["tune"] if b.name == name)
            fault = Fault(kind="few_micro_batches", size=float(micro))
            run = played(build(base, (fault,), seed=5))
            seen = Seen(
                batched=batched,
                gpus_per_node=4,
                purposes=dropped != "purposes",
                group_ranks=dropped != "ranks",
                rank=dropped != "rank",
            )
            ranks = [
                measure_rank(rank_trace(run, rank, seen), rank=rank, timeline=False)
                for rank in range(len(run.steps))
            ]
            cache[key] = Facts(measure_run(ranks), Context())
        return cache[key]

    return make


@pytest.mark.parametrize("dropped", ["", "purposes", "ranks", "rank"])
@pytest.mark.parametrize(
    ("name", "stages", "turns", "batched"),
    [
        ("70b-tp2-pp2", 2, Turns(4), False),
        ("70b-tp2-pp2", 2, Turns(4), True),
        ("70b-tp2-pp4", 4, Turns(8), False),
        ("70b-tp2-pp4", 4, Turns(8), True),
        ("65b-pp2-vpp2", 2, Turns(4, 2), False),
    ],
)
def test_micro_batches_are_told_from_kernels(pipelines, name, stages, turns, batched, dropped):
    facts = pipelines(name, turns.micro, batched=batched, dropped=dropped)
    assert facts.num_stages == stages
    rounds = rounds_of(facts, stages=stages)
    assert rounds.likely == turns


@pytest.mark.parametrize(
    ("sends", "stages", "last", "turns"),
    [
        # 1F1B, eight micro-batches, four stages: a send and a receive for each
        (16, 4, False, Turns(8)),
        # batched: 3 forward sends, 5 pairs, 3 gradients on the first; 1 + 7 + 1 on the last
        (11, 4, False, Turns(8)),
        (9, 4, True, Turns(8)),
        # two chunks, four micro-batches, two stages: three borders, each crossed both ways
        (24, 2, False, Turns(4, 2)),
    ],
)
def test_kernels_at_the_ends_of_a_pipeline(sends, stages, last, turns):
    assert turns in _readings(sends, stages, last=last)


def test_a_wait_of_a_pipeline_is_shown_at_its_calls(pipelines):
    facts = pipelines("70b-tp2-pp2", 4, batched=True)
    step = facts.ranks[0].steady[0].time.window
    found = places.pipeline_waits(facts, (0, 1))
    assert not places.pipeline_waits(facts, ())
    assert found
    assert all(place.rank == 0 for place in found)
    assert sum(p.end_us - p.start_us for p in found) < 0.6 * (step.end - step.start)


@pytest.mark.parametrize(
    ("groups", "purposes", "name"),
    [
        ({"1": (0, 1), "2": (0, 4)}, {"1": "TENSOR_MODEL_PARALLEL_GROUP", "2": "mesh_pp"}, "2"),
        # by its stride: the outermost axis
        ({"0": tuple(range(8)), "1": (0, 1), "2": (0, 2), "3": (0, 4)}, {}, "3"),
        # a ring over the sequence sends as well
        ({"1": (0, 1), "2": (0, 4)}, {"1": "CONTEXT_PARALLEL_GROUP", "2": "mesh_pp"}, None),
        ({"1": (0, 1), "2": (0, 4)}, {"1": "TENSOR_MODEL_PARALLEL_GROUP"}, None),
        ({}, {}, None),
    ],
)
def test_group_of_a_pipeline_in_a_header(groups, purposes, name):
    assert listed_pipeline(groups, purposes, rank=0, world=8) == name


def test_sends_without_any_metadata_leave_the_stages_open():
    """Bare sends, no header: there may be stages, and ranks are not each other's peers."""
    base = next(b for b in BASES["tune"] if b.name == "70b-tp2-pp4")
    run = played(build(base, (), seed=5))
    seen = Seen(batched=True, purposes=False, group_ranks=False, rank=False, gpus_per_node=4)
    ranks = [
        measure_rank(rank_trace(run, rank, seen), rank=rank, timeline=False) for rank in range(8)
    ]
    facts = Facts(measure_run(ranks), Context())
    assert facts.stages_hidden
    assert np.isclose(sum(facts.share(f.exposed_us) for f in facts.flows_of("pp")), 0.0)
