"""What is measured of one rank: idle by cause, traffic by axis, bandwidth, phases, steps."""

import pytest

from diagnose_traces import TraceMaker
from meshplan.diagnose.channels import bus_factor
from meshplan.diagnose.names import axis_of_kernel, axis_of_purpose, communicates, kind_of
from meshplan.diagnose.rank import measure_rank
from meshplan.diagnose.trace import read_trace


def measure(maker, tmp_path, **options):
    return measure_rank(read_trace(maker.write(tmp_path / "rank0.json")), **options)


def test_idle_by_cause(tmp_path):
    maker = TraceMaker(0, 1)
    maker.step(1, 0, 1000)
    maker.kernel("gemm", 0, 100, launch=-50)
    maker.kernel("gemm", 200, 100, launch=150)  # 100 us late: the host
    maker.host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 310, 80)
    maker.kernel("gemm", 400, 100, launch=395)  # 80 us of data, 20 us of the host
    maker.kernel("gemm", 550, 100, launch=410)  # launched in time: the device held it back
    maker.kernel("gemm", 700, 100)  # nobody knows
    found = measure(maker, tmp_path).steps[0]
    assert found.time.idle_us == 100 + 100 + 50 + 50 + 200
    assert found.idle.host_us == pytest.approx(120)
    assert found.idle.data_us == pytest.approx(80)
    assert found.idle.device_us == pytest.approx(50)
    assert found.idle.unknown_us == pytest.approx(250)  # and what follows the last kernel
    assert (found.idle.num_late, found.idle.num_launched) == (3, 4)


def test_exposed_time_is_shared_out_once(tmp_path):
    maker = TraceMaker(0, 8)
    maker.step(1, 0, 1000)
    maker.kernel("gemm", 0, 400)
    maker.collective("all_reduce", 300, 300, ranks=(0, 1), elements=10, group="tp", stream=20,
                     purpose="TENSOR_MODEL_PARALLEL_GROUP")  # fmt: skip
    maker.collective("reduce_scatter", 500, 300, ranks=(0, 2, 4, 6), elements=10, group="dp",
                     stream=21, purpose="DATA_PARALLEL_GROUP_WITH_CP")  # fmt: skip
    step = measure(maker, tmp_path).steps[0]
    assert step.time.exposed_us == 400
    assert step.exposed_by_axis_us == {"tp": 200, "dp": 200}
    assert sum(step.exposed_by_axis_us.values()) == step.time.exposed_us
    by_axis = {t.axis: t for t in step.traffic}
    assert by_axis["dp"].exposed_us == 300  # each by itself may overlap the other
    assert by_axis["tp"].basis == by_axis["dp"].basis == "metadata"
    assert step.time.efficiency == pytest.approx(400 / (400 + 500))


def test_bus_bandwidth_follows_nccl_tests(tmp_path):
    maker = TraceMaker(0, 8)
    maker.step(1, 0, 10_000)
    ranks = tuple(range(8))
    for i, kind in enumerate(("all_reduce", "all_gather", "reduce_scatter", "all_to_all")):
        maker.collective(
            kind, 1000 * i, 100, ranks=ranks, elements=2**20, group=kind, stream=20 + i
        )
    step = measure(maker, tmp_path).steps[0]
    mib = 2**20
    wanted = {
        "all_reduce": 2 * mib * 2 * 7 / 8,
        "all_gather": 8 * 2 * mib * 7 / 8,  # all ranks' part together
        "reduce_scatter": 8 * 2 * mib * 7 / 8,
        "all_to_all": 2 * mib * 7 / 8,
    }
    for traffic in step.traffic:
        assert traffic.bus_bytes_per_s == pytest.approx(wanted[traffic.kind] / 100e-6)
        assert traffic.sizes[0].count == 1
    assert bus_factor("broadcast", 8) == 1.0


def test_waiting_is_told_from_the_fast_calls_of_the_same_size(tmp_path):
    maker = TraceMaker(0, 2)
    maker.step(1, 0, 100_000)
    for i in range(20):
        late = 400 if i % 2 else 0
        maker.collective("all_reduce", 1000 * i, 100 + late, ranks=(0, 1), elements=1000)
    traffic = measure(maker, tmp_path).steps[0].traffic[0]
    assert traffic.wait_basis == "shortest"
    assert traffic.wait_us == pytest.approx(10 * 400)
    assert traffic.bus_bytes_per_s == pytest.approx(2000 / 100e-6)


def test_axes_from_ranks_without_descriptions(tmp_path):
    maker = TraceMaker(0, 16)
    maker.step(1, 0, 100_000)
    for i in range(8):
        maker.collective("all_reduce", 1000 * i, 10, ranks=(0, 1), elements=9, group="3", stream=1)
    maker.collective("all_reduce", 20_000, 10, ranks=(0, 2, 4, 6), elements=9, group="4", stream=2)
    maker.collective("send_recv", 30_000, 10, ranks=(0, 8), elements=9, group="5", stream=3)
    maker.collective(
        "all_reduce", 40_000, 10, ranks=tuple(range(16)), elements=9, group="0", stream=4
    )
    found = {t.group: (t.axis, t.basis) for t in measure(maker, tmp_path).steps[0].traffic}
    assert found == {
        "3": ("tp", "ranks"),
        "4": ("dp", "ranks"),
        "5": ("pp", "ranks"),
        "0": ("unknown", "unknown"),  # the whole job, as for the norm of the gradients
    }


@pytest.mark.parametrize("rank", [0, 3])
def test_the_only_group_of_a_job_of_unknown_size_is_data_parallel(tmp_path, rank):
    maker = TraceMaker()
    maker.step(1, 0, 1000)
    maker.collective("all_reduce", 100, 10, ranks=(0, 1, 2, 3), elements=9)
    (found,) = measure(maker, tmp_path, rank=rank).steps[0].traffic
    assert (found.axis, found.basis) == ("dp", "ranks")


def test_a_group_of_some_ranks_of_a_job_of_unknown_size_is_not(tmp_path):
    maker = TraceMaker()
    maker.step(1, 0, 1000)
    maker.collective("all_reduce", 100, 10, ranks=(0, 1, 2, 3), elements=9)
    maker.collective("all_reduce", 200, 10, ranks=(0, 4), elements=9, group="2", stream=21)
    found = {t.ranks: t.axis for t in measure(maker, tmp_path).steps[0].traffic}
    assert found == {(0, 1, 2, 3): "tp", (0, 4): "dp"}
    maker = TraceMaker()
    maker.step(1, 0, 1000)
    maker.collective("all_reduce", 100, 10, ranks=(4, 5, 6, 7), elements=9)
    (one,) = measure(maker, tmp_path).steps[0].traffic
    assert one.axis == "tp"


def test_kernels_of_one_stream_that_overlap_are_said(tmp_path):
    maker = TraceMaker()
    for i in range(20):
        maker.kernel("gemm", 100.0 * i, 150.0)
    assert {n.code: n.numbers for n in measure(maker, tmp_path).notes}["overlapping_kernels"] == {
        "num": 19, "num_kernels": 20,
    }  # fmt: skip
    maker = TraceMaker()
    for i in range(20):
        maker.kernel("gemm", 100.0 * i, 150.0, stream=7 + i % 2)
    assert "overlapping_kernels" not in {n.code for n in measure(maker, tmp_path).notes}


def test_hybrid_sharding_is_not_tensor_parallelism(tmp_path):
    maker = TraceMaker(0, 16)
    maker.step(1, 0, 100_000)
    for i in range(6):
        at = 1000 * i
        maker.collective("all_gather", at, 10, ranks=range(8), elements=9, group="1", stream=1)
        maker.collective(
            "reduce_scatter", at + 20, 10, ranks=range(8), elements=9, group="1", stream=1
        )
        maker.collective("all_reduce", at + 40, 10, ranks=(0, 8), elements=9, group="2", stream=2)
    assert {t.axis for t in measure(maker, tmp_path).steps[0].traffic} == {"dp"}


def test_without_metadata_the_host_range_tells_the_kind(tmp_path):
    maker = TraceMaker(0, 8)
    maker.step(1, 0, 1000)
    maker.host("nccl:all_to_all", 10, 50)
    maker.kernel("ncclDevKernel_Generic(ncclDevKernelArgs)", 100, 50, launch=30)
    maker.kernel("ncclDevKernel_Generic(ncclDevKernelArgs)", 300, 50, launch=90)
    kinds = {t.kind: t.count for t in measure(maker, tmp_path).steps[0].traffic}
    assert kinds == {"all_to_all": 1, "other": 1}


def test_kernels_of_several_devices_in_one_file_are_said(tmp_path):
    maker = TraceMaker(0, 1)
    maker.kernel("gemm", 0, 10, device=0)
    maker.kernel("gemm", 5, 10, device=1)
    notes = {n.code: n.numbers for n in measure(maker, tmp_path).notes}
    assert notes["several_devices"] == {"num": 2}


def test_phases_from_operators(tmp_path):
    maker = TraceMaker(0, 1)
    maker.step(1, 0, 1000)
    maker.kernel("gemm", 100, 100, launch=10)
    maker.host(
        "autograd::engine::evaluate_function: CheckpointFunctionBackward", 50, 100, cat="cpu_op"
    )
    maker.kernel("gemm", 200, 50, launch=60)  # computed again
    maker.host("autograd::engine::evaluate_function: MmBackward0", 100, 40, cat="cpu_op")
    maker.kernel("gemm", 300, 200, launch=110)
    maker.host("Optimizer.step#AdamW.step", 200, 50)
    maker.kernel("adam", 600, 30, launch=210)
    phases = {p.name: p.compute_us for p in measure(maker, tmp_path).steps[0].phases}
    assert phases == {"forward": 100, "recompute": 50, "backward": 200, "optimizer": 30}


def test_without_marks_of_backward_nothing_is_called_forward(tmp_path):
    maker = TraceMaker(0, 1)
    maker.step(1, 0, 1000)
    maker.kernel("gemm", 100, 300, launch=10)
    maker.host("Optimizer.step#AdamW.step", 200, 50)
    maker.kernel("adam", 600, 30, launch=210)
    phases = {p.name: p.compute_us for p in measure(maker, tmp_path).steps[0].phases}
    assert phases == {"other": 300, "optimizer": 30}


def test_warm_up_is_set_apart(tmp_path):
    maker = TraceMaker(0, 1)
    for i, (start, wall) in enumerate(((0, 5000), (5000, 1000), (6000, 1010), (7010, 990))):
        maker.step(i, start, wall)
        maker.kernel("gemm", start, 500)
    found = measure(maker, tmp_path)
    assert [s.warm_up for s in found.steps] == [True, False, False, False]
    assert found.median_us("wall_us") == 1000


def test_a_host_far_ahead_does_not_tell_the_steps_of_the_device(tmp_path):
    """The host launches a step in 200 us that the device needs 1000 us for."""
    maker = TraceMaker(0, 1)
    for i in range(5):
        maker.step(i, 200 * i, 200)
        for j in range(9):
            maker.kernel("gemm", 1000 * i + 100 * j, 100, launch=200 * i + 10 * j)
        maker.collective("all_reduce", 1000 * i + 900, 100, ranks=(0, 1), elements=9,
                         launch=200 * i + 100)  # fmt: skip
    found = measure(maker, tmp_path)
    assert "host_ahead" in [n.code for n in found.notes]
    assert [s.time.wall_us for s in found.steps] == [1000] * 5
    assert [s.time.compute_us for s in found.steps] == [900] * 5
    assert [s.time.exposed_us for s in found.steps] == [100] * 5
    assert found.steps[0].name == "ProfilerStep#0"


def test_a_host_that_waits_tells_the_steps(tmp_path):
    maker = TraceMaker(0, 1)
    for i in range(5):
        maker.step(i, 1000 * i, 1000)
        maker.kernel("gemm", 1000 * i + 50, 900, launch=1000 * i + 10)
    found = measure(maker, tmp_path)
    assert "host_ahead" not in [n.code for n in found.notes]
    assert [s.time.window.start for s in found.steps] == [0, 1000, 2000, 3000, 4000]


def test_steps_are_told_by_the_optimizer(tmp_path):
    maker = TraceMaker(0, 1)
    for i in range(4):
        maker.kernel("gemm", 1000 * i, 800)
        for j in range(5):
            maker.kernel("multi_tensor_apply_kernel<AdamFunctor>", 1000 * i + 850 + 10 * j, 8)
    found = measure(maker, tmp_path)
    assert [n.code for n in found.notes if "step" in n.code] == ["steps_inferred"]
    assert [s.time.compute_us for s in found.steps] == pytest.approx([840] * 4)
    assert found.steps[1].time.wall_us == pytest.approx(1000)


def test_a_trace_without_rhythm_is_one_step(tmp_path):
    maker = TraceMaker(0, 1)
    maker.kernel("gemm", 0, 800)
    maker.kernel("adam", 900, 10)
    found = measure(maker, tmp_path)
    assert [s.name for s in found.steps] == ["whole"]
    assert "no_step_marks" in [n.code for n in found.notes]


@pytest.mark.parametrize(
    "kernel",
    [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_float",
        "rcclGenericKernel",
        "multimem_all_reduce_kernel<c10::BFloat16>",
        "void nvshmemi_allreduce_kernel<float>()",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)",
        "void deep_ep::internode_ll::combine<true>()",
        "EpDispatchIntraNodeKernel<hip_bfloat16>",
        "void mscclpp::allreduceAllPairs<float>()",
        "mscclKernel_Sum_half",
        "kuserbuffers_pushsend(int*, int*, int4*, int4*, int)",
        "void tensorrt_llm::kernels::twoShotAllReduceKernel<half>()",
        "void vllm::cross_device_reduce_2stage<half, 8>()",
        "hcom_allReduce__123",
        "gloo:all_reduce",
    ],
)
def test_communication_kernels_of_any_library(kernel):
    assert communicates(kernel)


@pytest.mark.parametrize(
    "kernel",
    [
        "void deep_ep::layout::get_dispatch_layout<256, 8>()",
        "void at::native::vectorized_elementwise_kernel<4, lambda>()",
        "cutlass_80_tensorop_bf16_s16816gemm",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>",
        "void moe_permute_topk_map()",
        "reduce_1Block_kernel",
    ],
)
def test_kernels_that_compute(kernel):
    assert not communicates(kernel)


@pytest.mark.parametrize(
    ("purpose", "axis"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "tp"),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "tp"),
        ("EMBEDDING_GROUP", "pp"),
        ("mesh_tp", "tp"),
        ("mesh_dp_shard_cp", "dp"),
        ("mesh_dp_replicate", "dp"),
        ("mesh_fsdp", "dp"),
        ("mesh_pp", "pp"),
        ("mesh_cp", "cp"),
        ("mesh_ep", "ep"),
        ("mesh_etp", "tp"),
        ("default_pg", None),
        ("undefined", None),
    ],
)
def test_axis_of_a_group_by_its_description(purpose, axis):
    assert axis_of_purpose(purpose) == axis


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("_allgather_base", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base", "all_to_all"),
        ("void deep_ep::intranode::combine<>", "all_to_all"),
        ("ncclDevKernel_SendRecv", "send_recv"),
        ("broadcast_oop", "broadcast"),
        ("gloo:all_reduce", "all_reduce"),
    ],
)
def test_kind_of_a_collective(name, kind):
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    ("kernel", "axis", "kind"),
    [
        # names as their sources have them, see presets/names.yaml
        ("void uccl::internode_ll::dispatch<true, 7168>(void*)", "ep", "all_to_all"),
        ("void uccl::intranode::combine<__nv_bfloat16, 8, 768>(int4*)", "ep", "all_to_all"),
        ("void deep_ep::elastic::dispatch_impl<1, 2>(ncclDevComm, void*)", "ep", "all_to_all"),
        ("void deep_ep::elastic::hybrid_combine_impl<8>(__nv_bfloat16*)", "ep", "all_to_all"),
        ("void deep_ep::elastic::pp_send_impl<1, 2, 3, 4>(ncclDevComm)", "pp", "send_recv"),
        ("void a2a_combine_recv_kernel<16ul, __nv_bfloat16>(unsigned long)", "ep", "all_to_all"),
        ("void (anonymous namespace)::dispatchKernel<10u, true>(int*)", "ep", "all_to_all"),
        ("void alltoall_on_stream_kernel<char, (threadgroup_t)2>(int, char*)", None, "all_to_all"),
        ("void fcollect_on_stream_kernel<half, (threadgroup_t)2>(int)", None, "all_gather"),
        ("void rdxn_on_stream_kernel<float, (rdxn_ops)4>(int, float*)", None, "all_reduce"),
        ("void reducescatter_on_stream_kernel<float>(int)", None, "reduce_scatter"),
        ("nvshmemi_proxy_rma_entrypoint(void*, void*)", None, "send_recv"),
        ("void mscclpp::collective::allreduceNvlsBlockPipeline<half>()", None, "all_reduce"),
        ("void meta::comms::ddaReduceScatterIpc<float, 8>(float**)", None, "reduce_scatter"),
        ("void ncclKernelRecv<0>(int*, CtranAlgoDeviceState*)", None, "send_recv"),
        ("ncclKernelAllToAllv(int*)", None, "all_to_all"),
    ],
)
def test_kernels_of_newer_libraries(kernel, axis, kind):
    assert communicates(kernel)
    assert axis_of_kernel(kernel) == axis
    assert kind_of(kernel) == kind


@pytest.mark.parametrize(
    "kernel",
    [
        "void deep_ep::elastic::dispatch_copy_epilogue_impl<8>(void*)",
        "void deep_ep::elastic::combine_reduce_epilogue_impl<8>(__nv_bfloat16*)",
        "void uccl::layout::get_dispatch_layout<256>()",
        "void splitk_combineKernel<float>()",
        "topk_dispatch_order()",
    ],
)
def test_what_such_libraries_compute(kernel):
    assert not communicates(kernel)
