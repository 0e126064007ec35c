"""The page that says why a run is slow: files in, timeline and findings out."""

import json
import time
from pathlib import Path

import httpx
import pytest

from meshplan.app.cli.main import run
from meshplan.text import t

AXE = Path(__file__).parent / "axe.min.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
NUM_KERNELS, STEPS = 200, 3


def trace(rank):
    """A rank whose kernels of 10 us come every 100 us, each launched just before: host-bound."""
    events = []
    for step in range(STEPS):
        base = 1e6 + step * NUM_KERNELS * 100.0
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "tid": 1}
        events.append({**mark, "pid": 1, "ts": base, "dur": NUM_KERNELS * 100.0})
        for i in range(NUM_KERNELS):
            link = step * NUM_KERNELS + i + 1
            at = base + i * 100.0
            launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1}
            args = {"correlation": link}
            events.append({**launch, "pid": 1, "ts": at + 80, "dur": 5, "args": args})
            kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}
            args = {"correlation": link, "stream": 7, "device": 0}
            events.append({**kernel, "ts": at + 88, "dur": 10, "args": args})
    info = {"rank": rank, "world_size": 2}
    return json.dumps({"distributedInfo": info, "traceEvents": events})


@pytest.fixture(scope="module")
def client(url):
    with httpx.Client(base_url=url, timeout=120) as opened:
        yield opened


def uploaded(client, name, text):
    response = client.post("/api/upload", params={"name": name}, content=text)
    assert response.status_code == 200, response.text
    return response.json()


def picture(canvas):
    return canvas.evaluate("node => node.toDataURL()")


def until(holds):
    """Wait in Python: the page's policy forbids what the browser driver would evaluate."""
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def steady(canvas):
    """What is drawn once two looks at it see the same, so that a later change is another's."""
    seen = [picture(canvas)]

    def stays():
        seen.append(picture(canvas))
        return seen[-1] == seen[-2]

    until(stays)
    return seen[-1]


def lines(client, body, lang="en"):
    response = client.post(f"/api/diagnose?lang={lang}", json=body)
    return [json.loads(line) for line in response.text.splitlines()]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_where_nothing_could_be_checked_the_page_says_so(client, lang):
    # the memory of one GPU: nothing to compare it with, and no trace
    file = uploaded(client, "smi.csv", "index, memory.used [MiB]\n0, 65000 MiB\n0, 65010 MiB\n")
    *_, last = lines(client, {"files": [file["key"]]}, lang)
    assert last["result"]["findings"] == []
    assert last["words"][lang]["nothing"] == t("diagnose.nothing_checked", lang)


def test_the_page_gets_what_the_command_line_prints(client, capsys, tmp_path):
    path = tmp_path / "trace_rank0.json"
    path.write_text(trace(0))
    file = uploaded(client, path.name, path.read_text())
    *_, last = lines(client, {"files": [file["key"]]})
    run(["diagnose", str(path), "--json"])
    printed = json.loads(capsys.readouterr().out)
    shown = last["result"]
    timeline = shown.pop("timeline")
    assert shown.pop("paths") == [path.name]
    printed.pop("paths")
    assert shown == printed
    assert [finding["code"] for finding in shown["findings"]] == ["host_bound"]
    compute = next(lane for lane in timeline["ranks"][0]["lanes"] if lane["name"] == "compute")
    busy = sum(
        (b - a) * c
        for a, b, c in zip(compute["start_us"], compute["end_us"], compute["cover"], strict=True)
    )
    assert busy == pytest.approx(10.0 * NUM_KERNELS * STEPS, rel=1e-3)
    assert set(last["words"]) == {"en", "zh"}


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "..\\..\\x.json", "\u202egpj.json", ".", "", "a" * 5000, "a\nb\0c"]
)
def test_names_of_files_lead_nowhere(client, name):
    file = uploaded(client, name, trace(0))
    assert "/" not in file["name"]
    assert "\\" not in file["name"]
    assert not file["name"].startswith(".")
    assert file["name"].isprintable()
    *_, last = lines(client, {"files": [file["key"]]})
    assert last["result"]["run"]["num_ranks"] == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"files": ["nothing"]}, "web_upload_gone"),
        ({"files": "/etc/passwd"}, "web_bad_request"),
        ({"files": [7]}, "web_bad_request"),
        ({"paths": ["/etc/passwd"]}, "web_unknown_key"),
        ({"files": [], "plan_file": "/etc/passwd"}, "web_unknown_key"),
        ({"files": [], "config": ["/etc/passwd"]}, "web_unknown_key"),
    ],
)
def test_no_path_of_a_request_is_opened(client, body, code):
    response = client.post("/api/diagnose", json=body)
    assert response.status_code == 422
    assert response.json()["problems"][0]["code"] == code


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("text", ["", "{", '{"traceEvents": []}', "\0\1\2", "[]"])
def test_files_that_hold_nothing_are_refused_in_words(client, text, lang):
    file = uploaded(client, "odd.json", text)
    *_, last = lines(client, {"files": [file["key"]]}, lang)
    if "problems" in last:
        assert all(problem["message"] and problem["hint"] for problem in last["problems"])
    else:  # a whole trace of nothing is read, and said to hold nothing
        assert last["words"][lang]["notes"]


def test_what_a_person_drops_is_shown(page, url, tmp_path):
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_text(trace(rank))
    page.goto(f"{url}#page=diagnose&lang=en")
    page.set_input_files(".choose input", [tmp_path / "rank0.json", tmp_path / "rank1.json"])
    page.click(".diagnose .status button")
    page.wait_for_selector("main[data-ready=yes]", timeout=60000)
    assert page.locator(".finding").get_attribute("data-code") == "host_bound"
    assert page.locator("#timeline canvas").bounding_box()["height"] > 60
    page.click(".finding .button")
    page.focus(".lanes")
    drawn = page.locator("#timeline canvas")
    page.keyboard.press("0")  # no key of the timeline: what is shown is drawn and stays
    before = steady(drawn)
    page.keyboard.press("+")
    until(lambda: picture(drawn) != before)
    nearer = steady(drawn)
    page.keyboard.press("-")
    until(lambda: picture(drawn) != nearer)
    page.click("#language")
    page.wait_for_selector("text=什么在耗时间")
    assert "下发" in page.locator(".finding").inner_text()


@pytest.mark.parametrize(("lang", "theme"), [("en", "light"), ("zh", "dark")])
def test_accessibility(browser, url, tmp_path, lang, theme):
    (tmp_path / "rank0.json").write_text(trace(0))
    context = browser.new_context(viewport={"width": 1360, "height": 900}, bypass_csp=True)
    page = context.new_page()
    page.goto(f"{url}#page=diagnose&lang={lang}&theme={theme}")
    page.set_input_files(".choose input", tmp_path / "rank0.json")
    page.click(".diagnose .status button")
    page.wait_for_selector("main[data-ready=yes]", timeout=60000)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("tags => axe.run({runOnly: tags})", TAGS)
    broken = [(v["id"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found["violations"]]
    context.close()
    assert broken == []


def test_a_phone_scrolls_down_only(browser, url, tmp_path):
    # a long name without a gap stands in the notes on the file
    path = tmp_path / f"{'a_trace_of_a_run_' * 4}rank0.json"
    path.write_text(trace(0).replace('"cuda_runtime"', '"other"', 1))
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(f"{url}#page=diagnose&lang=zh")
    page.set_input_files(".choose input", path)
    page.click(".diagnose .status button")
    page.wait_for_selector("main[data-ready=yes]", timeout=60000)
    assert path.name in page.inner_text(".diagnose #main")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


@pytest.mark.parametrize("width", [390, 1360])
def test_long_names_show_where_they_differ(browser, url, tmp_path, width):
    stem = "llama_70b_h100_512_gpus_2026_11_30_run_17_profiler_step_240"
    names = [f"{stem}_rank{rank}.pt.trace.json" for rank in (0, 1)]
    for name in names:
        (tmp_path / name).write_text(trace(0))
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(f"{url}#page=diagnose&lang=en")
    page.set_input_files(".choose input", [tmp_path / name for name in names])
    page.wait_for_selector(".files li >> nth=1")
    for i, rank in enumerate(("rank0", "rank1")):
        told = page.locator(".files b").nth(i)
        assert told.inner_text() == f"{rank}.pt.trace.json"
        box, row = told.bounding_box(), page.locator(".files li").nth(i).bounding_box()
        assert box["x"] + box["width"] <= row["x"] + row["width"]
        inside = told.evaluate("node => node.scrollWidth <= node.clientWidth")
        assert inside
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
