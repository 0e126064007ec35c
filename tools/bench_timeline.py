"""Measure the timeline of a run in a browser: ``python tools/bench_timeline.py [EVENTS [RANKS]]``.

Traces with so many events in all (a million unless told) are dropped on the page of
``meshplan serve``, in Debian's Chromium without a GPU. Printed are the time until the findings
stand, the size of the answer, and the time between frames while the timeline is zoomed and moved by
keys, as fast as the browser takes them; a resting page gives the scale.
"""

from __future__ import annotations

import itertools
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from bench_diagnose import write_trace

BYTES_PER_EVENT = 1127  # what bench_diagnose writes for one kernel
KEYS = ("+", "ArrowRight", "ArrowRight", "-", "ArrowLeft", "+", "ArrowLeft", "-")
FRAMES = """(async () => {
  const times = [];
  await new Promise((done) => {
    const tick = (now) => {
      times.push(now);
      if (times.length < 90) requestAnimationFrame(tick); else done();
    };
    requestAnimationFrame(tick);
  });
  return times;
})()"""
MOVE = """((keys) => {
  const lanes = document.querySelector(".lanes");
  let turn = 0;
  const press = () => {
    const key = keys[turn % keys.length];
    lanes.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
    if (++turn < 120) requestAnimationFrame(press);
  };
  requestAnimationFrame(press);
})"""


def gaps_ms(page: Page) -> tuple[float, float]:
    """Median and longest time between 90 frames [ms]."""
    times = page.evaluate(FRAMES)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return statistics.median(gaps), max(gaps)


def measure(page: Page, url: str, paths: list[Path]) -> None:
    """Drop the files on the page and move in their timeline."""
    sizes: list[int] = []
    page.on("response", lambda r: sizes.append(len(r.body())) if "/api/diagnose" in r.url else None)
    page.goto(f"{url}#page=diagnose&lang=en")
    page.set_input_files(".choose input", paths)
    page.wait_for_selector(".diagnose .status button:not([disabled])", timeout=600_000)
    began = time.monotonic()
    page.click(".diagnose .status button")
    page.wait_for_selector("main[data-ready=yes] #timeline canvas", timeout=600_000)
    print(f"until the findings stand {time.monotonic() - began:.1f} s")
    page.wait_for_timeout(1000)
    print(page.inner_text("#timeline h2"), f"{max(sizes, default=0) / 1e6:.1f} MB of JSON")
    print("between frames at rest: median {:.1f} ms, longest {:.1f} ms".format(*gaps_ms(page)))
    before = page.screenshot()
    page.evaluate(f"{MOVE}({list(KEYS)})")
    print("between frames in motion: median {:.1f} ms, longest {:.1f} ms".format(*gaps_ms(page)))
    assert page.screenshot() != before, "nothing moved"


def main() -> int:
    """Serve, drop, move, print."""
    events, ranks = (
        int(given) for given in (*sys.argv[1:], *("1000000", "8")[len(sys.argv) - 1 :])
    )
    command = [sys.executable, "-m", "meshplan", "serve", "--port", "0", "--no-browser"]
    with (
        tempfile.TemporaryDirectory() as name,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            paths = [
                write_trace(
                    Path(name) / f"rank{rank}.json",
                    num_bytes=BYTES_PER_EVENT * events / ranks,
                    rank=rank,
                    world=ranks,
                )
                for rank in range(ranks)
            ]
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            context = browser.new_context(viewport={"width": 1360, "height": 900}, bypass_csp=True)
            measure(context.new_page(), found[0], paths)
            browser.close()
        finally:
            server.terminate()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
