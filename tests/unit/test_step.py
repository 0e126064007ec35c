"""Step times: parts, closed and simulated pipelines, and plans in any company."""

from dataclasses import fields, replace

import numpy as np
import pytest

from meshplan.cost.flop import matrix_parameters, step_flop
from meshplan.cost.least import least_high
from meshplan.cost.parameters import count_parameters
from meshplan.cost.step import PARTS, StepGrid, step_time
from meshplan.cost.timed import Timed
from meshplan.errors import UserError
from meshplan.inputs.job import Job
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.load.profile import (
    cluster_profile,
    cluster_profile_names,
    framework_profile,
    framework_profile_names,
    profile_of,
)
from meshplan.inputs.load.scenario import load_scenario
from meshplan.inputs.scenario import Scenario
from meshplan.space.complete import complete_plan
from meshplan.space.plan import Framework, PlanGrid
from space_scenarios import enumerate_plans

SCENARIOS = {
    "dense": ("llama-3.1-8b", "32xH100", 8192, 128, ("megatron",)),
    "moe": ("mixtral-8x7b", "64xH100", 4096, 256, ("megatron",)),
    "sharded": ("llama-3.1-8b", "16xA100-80GB", 4096, 64, ("torchtitan", "accelerate")),
    "pipelines": ("gpt3-175b", "128xA100-80GB", 2048, 128, ("megatron", "deepspeed")),
}


@pytest.fixture(scope="module", params=SCENARIOS)
def case(request):
    name, cluster, seq_len, global_batch, frameworks = SCENARIOS[request.param]
    scenario = Scenario(
        model=load_model(name),
        cluster=parse_cluster(cluster),
        job=Job(seq_len=seq_len, global_batch=global_batch),
        frameworks=frameworks,
    )
    grid = enumerate_plans(scenario).grid
    chosen = np.random.default_rng(1).choice(len(grid), min(300, len(grid)), replace=False)
    return scenario, grid.take(chosen)


def test_the_default_of_an_era_is_its_own():
    """Two fitted clusters of Blackwell reach less of the peak than those of other eras."""
    usual, blackwell = cluster_profile("default"), cluster_profile("default", "blackwell")
    assert blackwell.name == usual.name
    assert blackwell.gemm < 0.85 * usual.gemm
    assert blackwell.scale_out == usual.scale_out
    assert cluster_profile("default", "hopper") == usual
    assert cluster_profile("nvidia-dgx", "blackwell") == cluster_profile("nvidia-dgx")
    assert "fit_profiles" in blackwell.sources["gemm"].source


def test_parts_add_up(case):
    scenario, grid = case
    for exact in (False, True):
        time = step_time(scenario, grid, exact=exact)
        total = sum(getattr(time, part) for part in PARTS)
        np.testing.assert_allclose(total, time.step_time_s, rtol=1e-9)
        for part in PARTS:
            assert (getattr(time, part) >= 0).all(), part


def test_waiting_for_slow_sends_is_no_bubble():
    """On a slow network the bubble is that of a fast one, and the rest is traffic."""
    job = {"seq_len": 8192, "global_batch": 512}
    times = []
    for network in ("8x400Gb/s-ib", "25GbE"):
        cluster = {"base": "32xH100", "network": network}
        scenario = load_scenario({"model": "llama-3.1-8b", "cluster": cluster, "job": job})
        plan = complete_plan(scenario, framework=Framework.MEGATRON, tp=8, pp=4)
        times.append(step_time(scenario, PlanGrid.of([plan]), exact=True))
    fast, slow = times
    assert slow.bubble_s[0] == pytest.approx(fast.bubble_s[0], rel=0.02)
    assert slow.pp_comm_s[0] > 100 * fast.pp_comm_s[0]
    longer = slow.step_time_s[0] - fast.step_time_s[0]
    assert slow.pp_comm_s[0] - fast.pp_comm_s[0] > 0.9 * longer


def test_closed_form_never_exceeds_the_simulation(case):
    scenario, grid = case
    closed, exact = step_time(scenario, grid), step_time(scenario, grid, exact=True)
    assert (closed.step_time_s <= exact.step_time_s).all()
    assert (closed.high_s <= exact.high_s).all()
    # tight enough to prune with
    assert np.median(exact.step_time_s / closed.step_time_s) < 1.02


def test_a_plan_gets_the_same_numbers_in_any_company(case):
    scenario, grid = case
    together = step_time(scenario, grid, exact=True)
    for index in range(0, len(grid), 37):
        alone = step_time(scenario, grid.take(np.array([index])), exact=True)
        for f in fields(StepGrid):
            assert getattr(alone, f.name)[0] == getattr(together, f.name)[index], f.name


def test_rates_agree_with_the_step(case):
    scenario, grid = case
    time = step_time(scenario, grid)
    assert (time.mfu_causal < time.mfu).all()
    assert (time.hfu >= time.mfu).all()
    peak = scenario.cluster.device.peak_flop_per_s[scenario.job.precision]
    rate = time.mfu * time.step_time_s * peak * scenario.cluster.num_gpus
    np.testing.assert_allclose(rate, time.model_flop, rtol=1e-12)


def test_band_holds_the_step(case):
    scenario, grid = case
    time = step_time(scenario, grid)
    assert (time.low_s < time.step_time_s).all()
    assert (time.high_s > time.step_time_s).all()
    width = time.high_s / time.step_time_s
    assert np.ptp(width) > 0, "a band that is the same for every plan changes no ranking"


@pytest.mark.parametrize(
    ("share", "counted"), [(0.0, 0.0), (0.001, 0.031762), (0.02, 0.552405), (0.08, 1.0), (0.5, 1.0)]
)
def test_a_node_that_holds_up_a_pipeline(share, counted):
    """16 nodes: the step stays, and the upper end waits, in full from as likely as not on."""
    name, cluster, seq_len, global_batch, _ = SCENARIOS["pipelines"]
    scenario = Scenario(
        model=load_model(name),
        cluster=parse_cluster(cluster),
        job=Job(seq_len=seq_len, global_batch=global_batch),
        frameworks=("megatron",),
    )
    grid = enumerate_plans(scenario).grid.take(np.arange(0, 4000, 40))
    own = profile_of(scenario, "megatron")
    faulty = replace(own, cluster=replace(own.cluster, stall_s=1.5, stall_share=share))
    clean = step_time(scenario, grid, profile=own)
    slow = step_time(scenario, grid, profile=faulty)
    stall = 1.5 * grid.num_micro_batches * (1.0 - 1.0 / grid.pp)
    np.testing.assert_array_equal(slow.step_time_s, clean.step_time_s)
    np.testing.assert_array_equal(slow.low_s, clean.low_s)
    more = counted * stall * (1.0 + own.band.base)
    np.testing.assert_allclose(slow.high_s, clean.high_s + more, rtol=1e-4)


def test_a_wait_of_every_micro_batch_is_part_of_the_step():
    """A calibrated cluster knows it: the step waits, and its bound does not come above it."""
    name, cluster, seq_len, global_batch, _ = SCENARIOS["pipelines"]
    scenario = Scenario(
        model=load_model(name),
        cluster=parse_cluster(cluster),
        job=Job(seq_len=seq_len, global_batch=global_batch),
        frameworks=("megatron",),
    )
    grid = enumerate_plans(scenario).grid.take(np.arange(0, 4000, 40))
    own = profile_of(scenario, "megatron")
    waiting = replace(own, cluster=replace(own.cluster, wait_s=0.7))
    clean = step_time(scenario, grid, profile=own)
    slow = step_time(scenario, grid, profile=waiting)
    wait = 0.7 * grid.num_micro_batches * (1.0 - 1.0 / grid.pp)
    np.testing.assert_allclose(slow.step_time_s, clean.step_time_s + wait, rtol=1e-12)
    np.testing.assert_allclose(slow.other_s, clean.other_s + wait, rtol=1e-12)
    least = least_high(Timed.of(scenario, grid, waiting))
    assert (least <= slow.high_s).all()


def sharded_plan(**degrees):
    """One plan of torch's FSDP, 16 A100, and its scenario."""
    name, cluster, seq_len, global_batch, _ = SCENARIOS["sharded"]
    scenario = Scenario(
        model=load_model(name),
        cluster=parse_cluster(cluster),
        job=Job(seq_len=seq_len, global_batch=global_batch),
        frameworks=("accelerate",),
    )
    grid = enumerate_plans(scenario).grid
    mask = (grid.recompute == 0) & (grid.offload == 0) & (grid.dp_replicate == 1)
    for name, value in degrees.items():
        mask &= getattr(grid, name) == value
    return scenario, grid.take(np.flatnonzero(mask)[:1])


def test_gathers_and_reductions_of_one_micro_batch_hide_behind_one_pass():
    """ZeRO-3 with one micro-batch: links so slow that nothing hides gather and reduce twice.

    Of two gathers and one reduction at most the whole computation is hidden, once.
    """
    scenario, plan = sharded_plan(zero=3, tp=1, cp=1, pp=1, micro_batch=4)
    assert plan.num_micro_batches[0] == 1
    own = profile_of(scenario, "accelerate")
    framework = replace(own.framework, shard_speed=0.02, contention=0.0, overlap_shards=1.0)
    slow = step_time(scenario, plan, profile=replace(own, framework=framework))
    framework = replace(framework, overlap_shards=0.0, overlap_gradients=0.0)
    bare = step_time(scenario, plan, profile=replace(own, framework=framework))
    hidden = bare.dp_comm_s - slow.dp_comm_s
    assert hidden > 0.5 * slow.compute_s
    assert hidden < 1.001 * slow.compute_s


def test_gradients_of_replicas_have_a_width_of_their_own():
    """accelerate: FSDP reduces 16 bits, DistributedDataParallel the 32 of its weights."""
    own = framework_profile("accelerate")
    assert (own.gradient_bytes, own.all_reduce_bytes) == (2.0, 4.0)
    other = framework_profile("deepspeed")
    assert (other.gradient_bytes, other.all_reduce_bytes) == (2.0, 2.0)
    for zero, used, unused in (
        (0, "all_reduce_bytes", "gradient_bytes"),
        (3, "gradient_bytes", "all_reduce_bytes"),
    ):
        scenario, plan = sharded_plan(zero=zero, tp=1, cp=1, pp=1, micro_batch=1)
        own = profile_of(scenario, "accelerate")
        bare = replace(
            own.framework, overlap_gradients=0.0, overlap_all_reduce=0.0, overlap_shards=0.0
        )
        times = {
            name: step_time(
                scenario,
                plan,
                profile=replace(own, framework=replace(bare, **{name: 8.0})),
            ).dp_comm_s[0]
            for name in (used, unused)
        }
        base = step_time(scenario, plan, profile=replace(own, framework=bare)).dp_comm_s[0]
        assert times[used] > 1.3 * base
        assert times[unused] == base


def test_gradients_that_are_not_sharded_pass_through_memory_whole():
    """Clearing them takes 4 bytes a parameter; a stack that copies them about takes more."""
    scenario, plan = sharded_plan(zero=0, tp=1, cp=1, pp=1, micro_batch=1)
    own = profile_of(scenario, "accelerate")
    times = [
        step_time(
            scenario,
            plan,
            profile=replace(own, framework=replace(own.framework, whole_gradient_bytes=width)),
        ).optimizer_s[0]
        for width in (4.0, 14.0, 24.0)
    ]
    assert times[1] - times[0] == pytest.approx(times[2] - times[1], rel=1e-6)
    moved = 10.0 * count_parameters(scenario.model).total
    device = scenario.cluster.device
    assert times[1] - times[0] >= moved / device.memory_bandwidth_bytes_per_s


def test_tensor_parallel_gathers_carry_the_bits_of_the_products():
    """Transformer Engine gathers what it has quantised, torchtitan only with one scale a tensor."""
    name, _, seq_len, global_batch, _ = SCENARIOS["dense"]
    shares = {}
    for framework in ("megatron", "torchtitan"):
        for precision in ("bf16", "fp8", "mxfp8", "nvfp4"):
            scenario = Scenario(
                model=load_model(name),
                cluster=parse_cluster("8xB200"),
                job=Job(seq_len=seq_len, global_batch=global_batch, precision=precision),
                frameworks=(framework,),
            )
            grid = enumerate_plans(scenario).grid
            mask = (grid.tp == 8) & (grid.sp == 1) & (grid.recompute == 0) & (grid.pp == 1)
            plan = grid.take(np.flatnonzero(mask)[:1])
            own = profile_of(scenario, framework)
            bare = replace(own.framework, overlap_tensor=0.0, overlap_weight_gradient=0.0)
            time = step_time(scenario, plan, profile=replace(own, framework=bare))
            shares[framework, precision] = time.tp_comm_s[0] / plan.num_micro_batches[0]
    assert shares["torchtitan", "mxfp8"] == pytest.approx(shares["torchtitan", "bf16"])
    # of two gathers and two reductions (Megatron-LM gathers once more) the gathers are halved,
    # those of the head are not, and latencies stay
    assert 0.75 < shares["torchtitan", "fp8"] / shares["torchtitan", "bf16"] < 0.85
    assert 0.7 < shares["megatron", "fp8"] / shares["megatron", "bf16"] < 0.81
    # a scale byte for 32 elements of 8 bits, and for 16 of 4
    saved = {p: shares["megatron", "bf16"] - shares["megatron", p] for p in ("mxfp8", "nvfp4")}
    fp8 = shares["megatron", "bf16"] - shares["megatron", "fp8"]
    assert saved["mxfp8"] / fp8 == pytest.approx((2 - 1.03125) / 1.0, rel=0.02)
    assert saved["nvfp4"] / fp8 == pytest.approx((2 - 0.5625) / 1.0, rel=0.05)


def test_what_hides_behind_the_gradients_of_split_products():
    """Megatron-LM: with sequence parallelism the second gather and the sum, without it the sum.

    Of two collectives forward and three backward the gather of the output's gradient is left
    beside those forward; of one all-reduce forward and one backward the former.
    """
    name, cluster, seq_len, global_batch, frameworks = SCENARIOS["dense"]
    scenario = Scenario(
        model=load_model(name),
        cluster=parse_cluster(cluster),
        job=Job(seq_len=seq_len, global_batch=global_batch),
        frameworks=frameworks,
        axes={"sp": (False, True)},
    )
    grid = enumerate_plans(scenario).grid
    own = profile_of(scenario, "megatron")
    # links so fast that the gradients hide them whole
    fast = replace(own.cluster, scale_up=4.0)
    for sp, share in ((False, 1 / 2), (True, 3 / 5)):
        mask = (grid.tp == 4) & (grid.sp == sp) & (grid.recompute == 0) & (grid.pp == 1)
        plan = grid.take(np.flatnonzero(mask & (grid.micro_batch == 1))[:1])
        times = [
            step_time(
                scenario,
                plan,
                profile=replace(
                    own,
                    cluster=fast,
                    framework=replace(
                        own.framework,
                        overlap_weight_gradient=overlap,
                        overlap_tensor=0.0,
                        contention=0.0,
                    ),
                ),
            ).tp_comm_s[0]
            for overlap in (0.0, 1.0)
        ]
        # embedding and head add theirs on both sides
        assert times[1] / times[0] == pytest.approx(share, abs=0.03)


def test_products_in_pieces_hide_traffic_where_devices_share_memory():
    """Sixteen GPUs of two nodes do not, sixteen of a domain of NVLink do."""
    shares = {}
    for cluster in ("64xH100", "64xGB200"):
        scenario = Scenario(
            model=load_model("llama-3.1-70b"),
            cluster=parse_cluster(cluster),
            job=Job(seq_len=8192, global_batch=64),
            frameworks=("megatron",),
            variant="megatron-bridge",
            axes={"tp": (16,), "pp": (4,), "micro_batch": (1,)},
        )
        plan = enumerate_plans(scenario).grid.take(np.arange(1))
        own = profile_of(scenario, "megatron")
        times = [
            step_time(
                scenario,
                plan,
                profile=replace(own, framework=replace(own.framework, overlap_tensor=overlap)),
            ).tp_comm_s[0]
            for overlap in (0.0, 0.9)
        ]
        shares[cluster] = times[1] / times[0]
    assert shares["64xH100"] == 1.0
    assert shares["64xGB200"] < 0.3


def test_the_host_launches_collectives_too():
    """Where the host decides, a tensor-parallel block waits for the launch of its collectives."""
    name, cluster, _, _, _ = SCENARIOS["dense"]
    scenario = Scenario(
        model=load_model(name),
        cluster=parse_cluster(cluster),
        job=Job(seq_len=512, global_batch=128),
        frameworks=("megatron",),
    )
    grid = enumerate_plans(scenario).grid
    flat = (grid.pp == 1) & (grid.cp == 1) & (grid.micro_batch == 1) & (grid.recompute == 0)
    flat &= (grid.zero == 1) & (grid.offload == 0) & (grid.sp == (grid.tp > 1))
    own = profile_of(scenario, "megatron")

    def launches(tp):
        """Launches of one block for one micro-batch, stragglers left out."""
        plan = grid.take(np.flatnonzero(flat & (grid.tp == tp))[:1])
        cluster = replace(own.cluster, straggler=0.0)
        first, second = (
            step_time(
                scenario,
                plan,
                profile=replace(
                    own, cluster=cluster, framework=replace(own.framework, launch_s=seconds)
                ),
            ).step_time_s[0]
            for seconds in (1e-3, 2e-3)
        )
        return (second - first) / (1e-3 * 32 * plan.num_micro_batches[0])

    # a gather and a scatter for each of two pairs forward, backward one gather more for each
    assert launches(4) - launches(1) == pytest.approx(10, rel=0.02)
    assert launches(1) > 20


def test_model_flop_of_gpt3():
    """96 layers of 175B, PaLM's convention: 6 N + 12 L h s FLOP per token, embeddings left out."""
    model = load_model("gpt3-175b")
    scenario = Scenario(
        model=model,
        cluster=parse_cluster("64xA100-80GB"),
        job=Job(seq_len=2048, global_batch=64),
    )
    time = step_time(scenario, enumerate_plans(scenario).grid.take(np.array([0])))
    weights = 12 * 96 * 12288**2 + model.vocab * 12288
    per_token = 6 * weights + 12 * 96 * 12288 * 2048
    assert time.model_flop[0] == pytest.approx(per_token * 2048 * 64, rel=1e-12)


def test_an_mtp_block_adds_one_block_one_join_and_one_head():
    """DeepSeek-V3, arXiv:2412.19437, section 2.2: a block, a matrix of 2 h x h, the shared head."""
    plain = load_model("llama-3.1-8b")
    hidden, inner, vocab = plain.hidden, 14336, plain.vocab
    scenario = Scenario(
        model=plain, cluster=parse_cluster("8xH100"), job=Job(seq_len=2048, global_batch=64)
    )
    further = replace(scenario, model=replace(plain, mtp_layers=plain.layers[:1]))
    block = hidden * (2 * hidden + 2 * 8 * 128) + 3 * hidden * inner
    added = block + 2 * hidden**2 + vocab * hidden
    assert matrix_parameters(further) - matrix_parameters(scenario) == added
    scores = 4 * 2048 * hidden
    flop = 3 * (2 * added + scores) * scenario.job.tokens_per_step
    assert step_flop(further).full - step_flop(scenario).full == flop


def test_an_mtp_block_takes_the_time_of_its_flop():
    """One block, one join and one head more on one device: 0.78 of 8.0 billion weights."""
    plain = load_model("llama-3.1-8b")
    scenario = Scenario(
        model=plain, cluster=parse_cluster("8xH100"), job=Job(seq_len=4096, global_batch=64)
    )
    further = replace(scenario, model=replace(plain, mtp_layers=plain.layers[:1]))
    plans = enumerate_plans(replace(scenario, axes={"tp": (1,), "pp": (1,), "cp": (1,)})).grid
    one, two = (step_time(s, plans.take(np.array([0]))).compute_s[0] for s in (scenario, further))
    work = matrix_parameters(further) / matrix_parameters(scenario)
    assert two / one == pytest.approx(work, rel=0.03)


@pytest.mark.parametrize("name", framework_profile_names())
def test_framework_profiles_have_sources(name):
    from meshplan.inputs.load.profile_file import profile_presets

    entry = profile_presets()["frameworks"][name]
    profile = framework_profile(entry["framework"], name)
    for f in fields(profile):
        if f.name not in ("name", "framework", "sources"):
            assert profile.sources[f.name].source, f.name
    assert len(entry.get("fitted") or {}) <= 8


@pytest.mark.parametrize("name", cluster_profile_names())
def test_cluster_profiles_have_sources(name):
    from meshplan.inputs.load.profile_file import profile_presets

    profile = cluster_profile(name)
    for f in fields(profile):
        if f.name not in ("name", "sources"):
            assert profile.sources[f.name].source, f.name
    assert len(profile_presets()["clusters"][name].get("fitted") or {}) <= 8


def test_unknown_profiles_are_the_users_mistake(tmp_path):
    with pytest.raises(UserError, match="unknown_profile"):
        cluster_profile("no-such-cluster")
    with pytest.raises(UserError, match="unknown_variant"):
        framework_profile("megatron", "no-such-variant")
    texts = {"fitted: [1]": "no_profile", "fitted: {gemm: x}": "bad_profile", "1": "no_profile"}
    for number, (text, code) in enumerate(texts.items()):
        path = tmp_path / f"profile{number}.yaml"
        path.write_text(text)
        with pytest.raises(UserError, match=code):
            cluster_profile(str(path))
    broken = {b"[": "yaml_syntax", b"\xff\xfe\x00": "profile_unreadable"}
    broken[b"fitted: {gemm: 1, gemm: 2}"] = "duplicate_key"
    for number, (raw, code) in enumerate(broken.items()):
        path = tmp_path / f"broken{number}.yaml"
        path.write_bytes(raw)
        with pytest.raises(UserError, match=code):
            cluster_profile(str(path))
    path.write_text("fitted: {gemm: 8e-1}\n")
    assert cluster_profile(str(path)).gemm == 0.8


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("fitted: {gem: 1}", "unknown_key"),
        ("fitted: {1: 1}", "unknown_key"),
        ("fitted: {gemm: 0}", "bad_profile"),
        ("fitted: {scale_up: 1.0e-300}", "bad_profile"),
        ("fitted: {stall_share: 2}", "bad_profile"),
        ("fitted: {gemm: 1}\nband: 3", "bad_band"),
        ("fitted: {gemm: 1}\nband: {base: wide}", "bad_band"),
        ("fitted: {gemm: 1}\nband: {base: -1}", "bad_band"),
        ("fitted: {gemm: 1}\nband: {base: .nan}", "bad_band"),
        ("fitted: {gemm: 1}\nband: {base: .inf}", "bad_band"),
        ("fitted: {gemm: 1}\nband: {width: 0.1}", "bad_band"),
        ("fitted: {gemm: 1}\nsourced: {gemm: 1}", "unknown_key"),
        ("fitted: {gemm: 1}\nresiduals: {reach: 2, runs: [], width: 1}", "bad_residuals"),
    ],
)
def test_profiles_that_no_step_can_have_are_the_users_mistake(tmp_path, text, code):
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=code):
        cluster_profile(str(path))


def test_a_profile_file_is_read_as_it_is_now(tmp_path):
    path = tmp_path / "profile.yaml"
    for gemm in (0.5, 0.9):
        path.write_text(f"fitted: {{gemm: {gemm}}}\n")
        assert cluster_profile(str(path)).gemm == gemm


def test_profile_file_changes_the_step(tmp_path):
    path = tmp_path / "profile.yaml"
    path.write_text("fitted: {gemm: 0.5}\n")
    scenario = Scenario(
        model=load_model("llama-3.1-8b"),
        cluster=parse_cluster("8xH100"),
        job=Job(seq_len=4096, global_batch=8),
    )
    grid = enumerate_plans(scenario).grid.take(np.array([0]))
    slow = step_time(replace(scenario, profile=str(path)), grid)
    assert slow.compute_s[0] > 1.2 * step_time(scenario, grid).compute_s[0]
    assert profile_of(replace(scenario, profile=str(path)), "megatron").cluster.gemm == 0.5
