"""Pipes and archives: read as the files that they hold, one at a time."""

import bz2
import gzip
import importlib.util
import io
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from diagnose_traces import TraceMaker
from meshplan.app.diagnosis import diagnose_run
from meshplan.app.diagnosis_words import note_words
from meshplan.diagnose.read.packed import plain_files
from meshplan.diagnose.reading import read_run
from meshplan.errors import UserError

NUM_KERNELS = 40


@pytest.fixture
def traces(tmp_path):
    """Four ranks, in a folder of their own."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(4):
        made = TraceMaker(rank, 4)
        for i in range(NUM_KERNELS):
            made.kernel("gemm", 100.0 * i, 80.0, launch=100.0 * i - 50)
        made.write(folder / f"rank{rank}.json")
    return folder


def _tar(folder, path, mode):
    with tarfile.open(path, mode) as archive:
        archive.add(folder, "run")
    return path


def _zip(folder, path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in folder.iterdir():
            archive.write(file, f"run/{file.name}")
        archive.writestr("__MACOSX/run/._rank0.json", b"\x00")
    return path


def _numbers(run):
    return [(rank.rank, rank.whole.compute_us) for rank in run.ranks]


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_an_archive_is_a_folder(traces, tmp_path, kind):
    path = tmp_path / f"all.{kind}"
    _zip(traces, path) if kind == "zip" else _tar(traces, path, f"w:{kind.partition('.')[2]}")
    run = read_run([path])
    assert _numbers(run) == _numbers(read_run([traces]))
    assert {note.code for note in run.notes} <= {"no_step_marks", "clocks_not_aligned"}


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_trace_is_the_trace(traces, tmp_path, pack):
    path = tmp_path / "rank2.json.packed"
    path.write_bytes(pack((traces / "rank2.json").read_bytes()))
    assert _numbers(read_run([path])) == _numbers(read_run([traces / "rank2.json"]))


def test_pipes_by_name(traces, tmp_path):
    names = []
    for rank in range(3):
        os.mkfifo(tmp_path / f"p{rank}")
        names.append(tmp_path / f"p{rank}")
    texts = [(traces / f"rank{rank}.json").read_bytes() for rank in range(3)]
    texts[1] = gzip.compress(texts[1])
    threads = [
        threading.Thread(target=name.write_bytes, args=(text,), daemon=True)
        for name, text in zip(names, texts, strict=True)
    ]
    for thread in threads:
        thread.start()
    run = read_run([*names, traces / "rank3.json"])
    for thread in threads:
        thread.join(timeout=10)
    assert _numbers(run) == _numbers(read_run([traces]))


def test_a_pipe_of_a_run_on_the_host(tmp_path):
    """Such a trace is read twice, which a pipe does not allow."""
    made = TraceMaker(0, 2)
    made.host("aten::mm", 0, 80, cat="cpu_op")
    made.host("gloo:all_reduce", 100, 50, cat="cpu_op")
    path, pipe = made.write(tmp_path / "rank0.json"), tmp_path / "pipe"
    os.mkfifo(pipe)
    text = path.read_bytes()
    threading.Thread(target=pipe.write_bytes, args=(text,), daemon=True).start()
    assert _numbers(read_run([pipe])) == _numbers(read_run([path]))
    assert read_run([path]).ranks[0].whole.communication_us == 50


@pytest.mark.parametrize(
    "shell", ["cat {0} | {1} -", "{1} <(cat {0}) <(gzip -c {0})", "{1} - < {0}"]
)
def test_in_a_shell(traces, shell):
    command = f"{sys.executable} -m meshplan diagnose --json"
    text = shell.format(traces / "rank1.json", command)
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"device": "NVIDIA H100 80GB HBM3"' in done.stdout


def test_nothing_is_left_behind(traces, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    read_run([_zip(traces, tmp_path / "all.zip")])
    assert not list((tmp_path / "scratch").iterdir())


def test_members_come_one_at_a_time(traces, tmp_path):
    """So that an archive takes no more room on the disk than its largest member."""
    seen = []
    for file, is_named in plain_files(_zip(traces, tmp_path / "all.zip"), is_named=True):
        seen.append(file.name)
        assert not is_named
        assert list(file.parent.iterdir()) == [file]
    assert seen == [f"rank{rank}.json" for rank in range(4)]


def test_what_comes_before_the_end_of_a_cut_archive_is_read(traces, tmp_path):
    whole = _tar(traces, tmp_path / "all.tar", "w:").read_bytes()
    path = tmp_path / "cut.tar"
    path.write_bytes(whole[: len(whole) // 2])
    run = read_run([path])
    assert run.ranks
    assert "file_not_read" in [note.code for note in run.notes]
    for lang, word in (("en", "cut off"), ("zh", "不完整")):
        words = note_words(diagnose_run({"paths": [str(path)]})["run"], lang)
        assert any("cut.tar" in text and word in text for text in words)


def test_broken_archives_are_refused_in_one_sentence(tmp_path):
    for name, data in (("a.zip", b"PK\x03\x04" + bytes(40)), ("b.tar.xz", b"\xfd7zXZ\x00ab")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError) as caught:
            read_run([tmp_path / name])
        assert len(caught.value.problems) == 1


def test_an_archive_of_links_alone_is_refused(tmp_path):
    (tmp_path / "link").symlink_to("/nowhere")
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(tmp_path / "link", "link")
    with pytest.raises(UserError) as caught:
        read_run([path])
    assert [p.code for p in caught.value.problems] == ["trace.empty_archive"]


WAYS = {
    # what each way lacks: the package, or the program
    "package": pytest.param(
        "package",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("zstandard") is None, reason="no package zstandard here"
        ),
    ),
    "program": "program",
}
needs_zstd = pytest.mark.skipif(shutil.which("zstd") is None, reason="no program zstd here")


@pytest.fixture(params=WAYS.values())
def way(request, monkeypatch):
    if request.param == "program":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    return request.param


def _zstd(path):
    subprocess.run(["zstd", "--quiet", "--rm", str(path)], check=True)
    return path.with_name(f"{path.name}.zst")


@needs_zstd
def test_zstd_is_read(traces, tmp_path, way):
    plain = _numbers(read_run([traces]))
    tar = _zstd(_tar(traces, tmp_path / "all.tar", "w:"))
    assert _numbers(read_run([tar])) == plain
    for rank in range(4):
        _zstd(traces / f"rank{rank}.json")
    assert _numbers(read_run([traces])) == plain


@needs_zstd
def test_zstd_that_is_cut_is_read_to_the_cut(traces, tmp_path, way):
    whole = _tar(traces, tmp_path / "all.tar", "w:").read_bytes()
    frames = []
    for name, part in (("a", whole[: len(whole) // 2]), ("b", whole[len(whole) // 2 :])):
        (tmp_path / name).write_bytes(part)
        frames.append(_zstd(tmp_path / name).read_bytes())
    path = tmp_path / "all.tar.zst"
    path.write_bytes(frames[0] + frames[1][:-40])
    run = read_run([path])
    assert run.ranks and "file_not_read" in [note.code for note in run.notes]


def test_zstd_says_how_to_pipe_it(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    path = tmp_path / "rank0.json.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    with pytest.raises(UserError) as caught:
        read_run([path])
    assert [p.code for p in caught.value.problems] == ["trace.zstd"]


def test_a_zipped_export_of_nsight_is_unpacked(tmp_path):
    """A database cannot be read through a stream."""
    path = tmp_path / "x.sqlite.gz"
    path.write_bytes(gzip.compress(b"SQLite format 3\x00" + bytes(100)))
    with pytest.raises(UserError) as caught:
        read_run([path])
    assert caught.value.problems[0].code.startswith("nsight.")
    assert caught.value.problems[0].where == "x.sqlite"


def test_standard_input_is_named_by_a_dash(traces, monkeypatch):
    class Stdin:
        buffer = io.BytesIO((traces / "rank0.json").read_bytes())

    monkeypatch.setattr(sys, "stdin", Stdin)
    run = read_run([Path("-")])
    assert [rank.file for rank in run.ranks] == ["stdin"]
