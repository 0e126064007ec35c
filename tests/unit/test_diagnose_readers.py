"""Readers of Nsight Systems exports and of tables of GPU metrics, and how a file is recognized."""

import gzip
import json
import sqlite3

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diagnose_traces import TraceMaker
from meshplan.diagnose.measure import Sets, breakdown_in
from meshplan.diagnose.rank import measure_rank
from meshplan.diagnose.read.files import files_of, kind_of_file
from meshplan.diagnose.read.log import read_log
from meshplan.diagnose.read.metrics import read_metrics
from meshplan.diagnose.read.nsight import read_nsight
from meshplan.diagnose.reading import read_run
from meshplan.diagnose.trace import read_trace
from meshplan.diagnose.values import can_be_time
from meshplan.errors import UserError
from meshplan.units import GIB, MIB

SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, cuDevice INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
  contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER, shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, globalTid INTEGER,
  text TEXT, textId INTEGER);
"""
PID = 7 << 24


class Export:
    """Writes an export by hand; times in microseconds."""

    def __init__(self, path):
        self.path = path
        self._database = sqlite3.connect(path)
        self._database.executescript(SCHEMA)
        self._names = {}
        self._correlation = 0

    def _string(self, text):
        if text not in self._names:
            self._names[text] = len(self._names) + 1
            self._insert("StringIds", self._names[text], text)
        return self._names[text]

    def _insert(self, table, *values):
        marks = ", ".join("?" * len(values))
        self._database.execute(f"INSERT INTO {table} VALUES ({marks})", values)

    def kernel(self, name, start, duration, *, launch=None, device=0, stream=7, process=0):
        self._correlation += 1
        number, pid = self._correlation, PID + (process << 24)
        if launch is not None:
            begin = int(launch * 1000)
            self._insert("CUPTI_ACTIVITY_KIND_RUNTIME", begin, begin + 900, pid + 3, number,
                         self._string("cudaLaunchKernel"))  # fmt: skip
        begin, end = round(start * 1000), round((start + duration) * 1000)
        self._insert("CUPTI_ACTIVITY_KIND_KERNEL", begin, end, device, 1, stream, number, pid,
                     self._string(name), self._string(name[:8]))  # fmt: skip

    def copy(self, start, duration, *, device=0):
        begin, end = round(start * 1000), round((start + duration) * 1000)
        self._insert("CUPTI_ACTIVITY_KIND_MEMCPY", begin, end, device, 9, 0, PID, 100, 1)

    def range(self, name, start, duration, *, by_id=False, process=0):
        begin, end = round(start * 1000), round((start + duration) * 1000)
        text, number = (None, self._string(name)) if by_id else (name, None)
        self._insert("NVTX_EVENTS", begin, end, 59, PID + (process << 24) + 3, text, number)

    def close(self):
        self._insert("TARGET_INFO_GPU", 0, "NVIDIA H100 80GB HBM3", 0)
        self._database.commit()
        self._database.close()
        return self.path


def test_nsight_measures_what_kineto_measures(tmp_path):
    export, maker = Export(tmp_path / "report_rank3.sqlite"), TraceMaker()
    for step in range(3):
        begin = 1000.0 * step
        export.range(f"step {step}", begin, 1000.0, by_id=step == 1)
        maker.step(step, begin, 1000.0)
        for i in range(5):
            at = begin + 150 * i
            for one in (export, maker):
                one.kernel("sm90_gemm", at, 100.5, launch=at - 20)
        for one in (export, maker):
            one.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", begin + 700, 200, stream=20)
            one.copy(begin + 950, 20)
    (nsight,) = read_nsight(export.close())
    kineto = read_trace(maker.write(tmp_path / "same.json"))
    assert nsight.device == "NVIDIA H100 80GB HBM3"
    found, wanted = (
        [breakdown_in(one, Sets.of(one), window) for window in (*one.steps, one.span)]
        for one in (nsight, kineto)
    )
    assert len(found) == len(wanted) == 4
    for a, b in zip(found, wanted, strict=True):
        assert (a.wall_us, a.compute_us) == pytest.approx((b.wall_us, b.compute_us))
        assert a.communication_us == pytest.approx(b.communication_us)
        assert a.exposed_us == pytest.approx(b.exposed_us)
        assert (a.copy_us, a.idle_us) == pytest.approx((b.copy_us, b.idle_us))
    idle, same = measure_rank(nsight).steps[0].idle, measure_rank(kineto).steps[0].idle
    assert (idle.host_us, idle.num_late) == pytest.approx((same.host_us, same.num_late))
    run = read_run([export.path])
    assert [(r.rank, r.rank_basis) for r in run.ranks] == [(3, "file_name")]


def test_each_device_of_an_export_is_a_rank(tmp_path):
    export = Export(tmp_path / "node.sqlite")
    for device in range(4):
        export.range("step 0", 0, 100, process=device)
        export.kernel("gemm", 0, 10 * (device + 1), device=device, process=device, launch=0)
    run = read_run([export.close()])
    assert [r.rank for r in run.ranks] == [0, 1, 2, 3]
    assert [r.steps[0].time.compute_us for r in run.ranks] == [10, 20, 30, 40]
    assert {r.steps[0].name for r in run.ranks} == {"step 0"}


def test_nvtx_phases_and_collectives(tmp_path):
    export = Export(tmp_path / "r.sqlite")
    export.range("iteration 5", 0, 1000)
    export.range("forward-compute", 0, 100)
    export.range("backward-compute", 100, 100)
    export.range("ncclAllToAll", 200, 20)
    export.kernel("gemm", 50, 100, launch=10)
    export.kernel("gemm", 200, 300, launch=110)
    export.kernel("ncclDevKernel_SendRecv", 600, 50, launch=210, stream=9)
    (trace,) = read_nsight(export.close())
    step = measure_rank(trace).steps[0]
    assert {p.name: p.compute_us for p in step.phases if p.compute_us} == {
        "forward": 100,
        "backward": 300,
    }
    assert step.traffic[0].kind == "all_to_all"


def test_an_export_without_kernels_or_cut_off(tmp_path):
    database = sqlite3.connect(tmp_path / "cpu.sqlite")
    database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    database.commit()
    database.close()
    with pytest.raises(UserError, match=r"nsight\.no_kernels"):
        read_run([tmp_path / "cpu.sqlite"])
    export = Export(tmp_path / "whole.sqlite")
    for i in range(3000):
        export.kernel("gemm", 10 * i, 5)
    data = export.close().read_bytes()
    (tmp_path / "cut.sqlite").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"nsight\.unreadable"):
        read_run([tmp_path / "cut.sqlite"])


def test_times_of_an_export_that_run_backwards(tmp_path):
    export = Export(tmp_path / "r.sqlite")
    export.kernel("gemm", 100, 10)
    export.kernel("gemm", 200, -10)
    run = read_run([export.close()])
    assert run.ranks[0].whole.compute_us == 10
    assert [n.numbers for n in run.notes if n.code == "bad_times"] == [{"num": 1}]


SMI = """timestamp, index, name, utilization.gpu [%], memory.used [MiB], clocks.current.sm [MHz], \
power.draw [W], clocks_throttle_reasons.active, clocks_throttle_reasons.hw_thermal_slowdown
1/1 00:00:00, 0, H100, 97 %, 70000 MiB, 1980 MHz, 650.10 W, 0x0000000000000004, Active
1/1 00:00:00, 1, H100, 12 %, 60000 MiB, 345 MHz, 120.10 W, 0x0000000000000001, Not Active
1/1 00:00:01, 0, H100, 99 %, 70000 MiB, 1755 MHz, [N/A], 0x0000000000000000, Not Active
"""
DMON = """# gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk  rxpci  txpci  pviol  tviol
# Idx      W      C      C      %      %    MHz    MHz   MB/s   MB/s      %   bool
    0    650     60     70     98     50   2619   1980   1000    200     12      0
    1    120     40      -      3      1   2619    345      0      0      0      0
# gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk  rxpci  txpci  pviol  tviol
# Idx      W      C      C      %      %    MHz    MHz   MB/s   MB/s      %   bool
    0    640     60     70     96     50   2619   1980   1000    200     12      1
"""
DCGM = """#Entity   SMACT        TENSO        DRAMA        NVLTX                NVLRX
ID
GPU 0     0.912        0.510        0.400        150000000000         140000000000
GPU 1     0.100        N/A          0.010        0                    0
"""
EXPORTER = """# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",Hostname="n1"} 98
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",Hostname="n1"} 40
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-a",Hostname="n1"} 0.55
"""
WIDE = """"T","DCGM_FI_PROF_SM_ACTIVE{gpu=""0"",Hostname=""n""}","DCGM_FI_PROF_SM_ACTIVE{gpu=""1""}"
2026-01-01 00:00:00,0.91,0.5
2026-01-01 00:00:15,0.93,0.4
"""
LONG = """time,gpu,DCGM_FI_DEV_GPU_UTIL,DCGM_FI_DEV_FB_USED
1,0,50,1000
2,1,70,2000
"""


def metrics(tmp_path, text):
    path = tmp_path / "metrics.txt"
    path.write_text(text)
    assert kind_of_file(path) == "metrics"
    return {g.gpu: g for g in read_metrics(path).gpus}


def means(series):
    return {name: figure.mean for name, figure in series.figures.items()}


def test_nvidia_smi_query(tmp_path):
    gpus = metrics(tmp_path, SMI)
    first = means(gpus["0"])
    assert first["utilization"] == pytest.approx(0.98)
    assert first["memory_used_bytes"] == 70000 * MIB
    assert first["sm_clock_hz"] == pytest.approx(1867.5e6)
    assert gpus["0"].figures["power_w"].num == 1  # [N/A] is no zero
    assert gpus["0"].throttled == {"power": 0.5, "hardware_thermal": 0.5}
    assert gpus["1"].throttled == {"idle": 1.0}


def test_nvidia_smi_dmon(tmp_path):
    gpus = metrics(tmp_path, DMON)
    first = means(gpus["0"])
    assert (first["utilization"], first["power_w"]) == pytest.approx((0.97, 645))
    assert first["pcie_receive_bytes_per_s"] == pytest.approx(1e9)
    assert gpus["0"].throttled == {"power": 1.0, "thermal": 0.5}
    assert gpus["1"].throttled == {}


@pytest.mark.parametrize(
    "text",
    [
        # nvidia-smi dmon -o T, -o DT, --format csv and both
        "#Time        gpu    pwr     sm   pclk\n#HH:MM:SS    Idx      W      %    MHz\n"
        " 10:00:00      0    650     98   1755\n 10:00:01      1    350     97   1155\n",
        "#Date    Time     gpu   pwr    sm   pclk\n#YYYYMMDD HH:MM:SS Idx   W   %  MHz\n"
        " 20260301 10:00:00   0   650    98   1755\n 20260301 10:00:01   1   350   97   1155\n",
        "#gpu, pwr, sm, pclk\n#Idx, W, %, MHz\n0, 650, 98, 1755\n1, 350, 97, 1155\n",
        "#Date, Time, gpu, pwr, sm, pclk\n#YYYYMMDD, HH:MM:SS, Idx, W, %, MHz\n"
        "20260301, 10:00:00, 0, 650, 98, 1755\n20260301, 10:00:00, 1, 350, 97, 1155\n",
    ],
)
def test_nvidia_smi_dmon_with_times_or_commas(tmp_path, text):
    gpus = metrics(tmp_path, text)
    assert means(gpus["0"]) == pytest.approx(
        {"power_w": 650, "utilization": 0.98, "sm_clock_hz": 1755e6}
    )
    assert means(gpus["1"])["sm_clock_hz"] == pytest.approx(1155e6)


def test_dcgmi_dmon(tmp_path):
    gpus = metrics(tmp_path, DCGM)
    assert means(gpus["0"])["tensor_active"] == pytest.approx(0.51)
    assert means(gpus["0"])["nvlink_send_bytes_per_s"] == pytest.approx(150e9)
    assert "tensor_active" not in gpus["1"].figures


def test_dcgm_exporter(tmp_path):
    gpus = metrics(tmp_path, EXPORTER)
    assert means(gpus["n1/0"]) == pytest.approx({"utilization": 0.98, "tensor_active": 0.55})
    wide = metrics(tmp_path, WIDE)
    assert means(wide["0"])["sm_active"] == pytest.approx(0.92)
    long = metrics(tmp_path, LONG)
    assert means(long["1"])["memory_used_bytes"] == 2000 * MIB


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_what_a_windows_console_writes(tmp_path, encoding):
    path = tmp_path / "smi.csv"
    path.write_text(SMI, encoding=encoding)
    assert kind_of_file(path) == "metrics"
    assert read_metrics(path).num_rows == 3
    path = tmp_path / "run.log"
    path.write_text("iteration 1/ 2 | elapsed time per iteration (ms): 10.0 |\n", encoding=encoding)
    assert kind_of_file(path) == "log"
    assert read_log(path).steps[0].step_time_s == 0.01


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(st.text(alphabet='0123456789.,%[]{}"#\x00 GPUgpusmNA/-x\t', max_size=40), max_size=6)
)
def test_any_table_is_read_or_refused(tmp_path, lines):
    path = tmp_path / "any.csv"
    path.write_text("\n".join((DMON.splitlines()[0], *lines)))
    try:
        found = read_metrics(path)
    except UserError as error:
        assert error.problems[0].code == "metrics_unknown"
    else:
        assert found.num_rows > 0


def test_rows_without_numbers_are_counted(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text(SMI + "2026, 0, NVIDIA H100, [N/A], [N/A], [N/A], [N/A], [N/A], [N/A]\n")
    assert [n.numbers for n in read_metrics(path).notes] == [{"num": 1}]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"schemaVersion": 1, "traceEvents": []}', "trace"),
        ('[{"ph": "X"}]', "trace"),
        ('{\n  "deviceProperties": [\n', "trace"),
        ('{"level": "info", "msg": "step 1"}\n{"level": "info"}\n', "log"),
        ("iteration 1/ 2 | elapsed time per iteration (ms): 10.0 |\n", "log"),
        ("\ufeffstep: 1 tps: 5\n", "log"),
        ("", "unknown"),
        ("\x00\x01", "unknown"),
    ],
)
def test_files_are_recognized_by_content(tmp_path, text, kind):
    for name, data in (("a", text.encode()), ("b.gz", gzip.compress(text.encode()))):
        (tmp_path / name).write_bytes(data)
        assert kind_of_file(tmp_path / name) == kind


def test_files_of_a_folder_in_natural_order(tmp_path):
    for number in (10, 9, 1):
        (tmp_path / f"rank{number}.json").write_text("{}")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "x.log").write_text("x")
    names = [path.name for path, named in files_of([tmp_path]) if not named]
    assert names == ["x.log", "rank1.json", "rank9.json", "rank10.json"]
    twice = files_of([tmp_path / "rank1.json", tmp_path / "rank1.json"])
    assert len(twice) == 1


def test_a_failed_allocation_is_read_from_a_log(tmp_path):
    old = (
        "RuntimeError: CUDA out of memory. Tried to allocate 3.14 GiB (GPU 0; 31.75 GiB total "
        "capacity; 28.28 GiB already allocated; 1.02 GiB free; 29.50 GiB reserved in total by "
        "PyTorch)"
    )
    new = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB. GPU 3 has a "
        "total capacity of 79.10 GiB of which 100.00 MiB is free. Process 1 has 79.00 GiB memory "
        "in use. Of the allocated memory 77.65 GiB is allocated by PyTorch, and 10 MiB is reserved"
    )
    step = "iteration 1/ 2 | elapsed time per iteration (ms): 10.0 |\n"
    path = tmp_path / "run.log"
    path.write_text(step + old + "\n")
    found = read_log(path).out_of_memory
    assert found.requested_bytes == pytest.approx(3.14 * GIB)
    assert found.capacity_bytes == pytest.approx(31.75 * GIB)
    assert found.allocated_bytes == pytest.approx(28.28 * GIB)
    assert found.reserved_bytes == pytest.approx(29.5 * GIB)
    path.write_text(new + "\n")  # a run that died before its first step
    found = read_log(path).out_of_memory
    assert found.requested_bytes == 786 * MIB
    assert found.capacity_bytes == pytest.approx(79.1 * GIB)
    assert found.allocated_bytes == pytest.approx(77.65 * GIB)
    assert found.free_bytes == 100 * MIB


def test_allocator_flushes_and_ranges_of_phases(tmp_path):
    path = tmp_path / "run.log"
    path.write_text(
        "[WARNING] [stage3.py:1850:step] 3 pytorch allocator cache flushes since last step. this\n"
        "[WARNING] [stage3.py:1850:step] 2 pytorch allocator cache flushes since last step. this\n"
        " iteration 7/ 9 | elapsed time per iteration (ms): 5000.0 | lm loss: 1.0 |\n"
        "(min, max) time across ranks (ms):\n"
        "    forward-backward ...............................: (3000.0, 4200.0)\n"
        "    optimizer ......................................: (100.0, 101.0)\n"
    )
    log = read_log(path)
    assert log.num_allocator_flushes == 5
    assert log.steps[0].phases_s == {"forward-backward": (3.0, 4.2), "optimizer": (0.1, 0.101)}


def test_a_run_of_all_kinds_of_files(tmp_path):
    maker = TraceMaker(0, 1)
    maker.kernel("gemm", 0, 10)
    maker.write(tmp_path / "rank0.json.gz")
    (tmp_path / "train.log").write_text(
        "iteration 1/ 2 | elapsed time per iteration (ms): 10.0 |\n"
    )
    (tmp_path / "gpu.csv").write_text(SMI)
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 5}))
    run = read_run([tmp_path])
    assert (len(run.ranks), len(run.logs), len(run.metrics)) == (1, 1, 1)
    assert [n.where for n in run.notes if n.code in ("file_not_read", "file_skipped")] == [
        "config.json"
    ]


@pytest.mark.parametrize(
    ("start", "duration", "can"),
    [(1.7e15, 50.0, True), (-200.0, 0.0, True), (0.0, -5.0, False), (0.0, 1e300, False)],
)
def test_times_that_a_profiler_can_have_meant(start, duration, can):
    assert can_be_time(np.array([start]), np.array([duration])).tolist() == [can]


def test_a_size_of_zero_states_nothing(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        "  Instantaneous batch size per device = 0\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 16\n"
        "{'loss': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
        "{'train_runtime': 10.0, 'train_samples_per_second': 16.0, "
        "'train_steps_per_second': 1.0, 'train_loss': 1.0, 'epoch': 1.0}\n"
    )
    settings = read_log(path).settings
    assert settings["global_batch"] == 16
    assert "micro_batch" not in settings
