"""A running server, and a browser where there is one."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def url():
    """Address of ``meshplan serve`` on a free port."""
    command = [sys.executable, "-m", "meshplan", "serve", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            line = server.stdout.readline()
            yield re.search(r"http://\S+", line).group(0)
        finally:
            server.terminate()
            server.wait(20)


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium; the tests are skipped with a reason where there is none."""
    path = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if path is None:
        pytest.skip("no browser: apt-get install chromium fonts-noto-cjk")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        options = {"executable_path": path, "args": ["--no-sandbox", "--disable-gpu"]}
        opened = playwright.chromium.launch(**options)
        yield opened
        opened.close()


@pytest.fixture
def page(browser, url):
    """A page that fails its test on console errors and on requests that leave the machine."""
    context = browser.new_context(viewport={"width": 1360, "height": 900}, accept_downloads=True)
    opened = context.new_page()
    faults = []
    opened.faults = faults
    opened.on("console", lambda m: faults.append(m.text) if m.type in ("error", "warning") else 0)
    opened.on("pageerror", lambda e: faults.append(str(e)))

    def note(request):
        if not request.url.startswith((url, "data:", "blob:")):
            faults.append(f"foreign request: {request.url}")

    opened.on("request", note)
    yield opened
    context.close()
    assert faults == []
