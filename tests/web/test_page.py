"""The page in a real browser: every picture, links, keyboard, small screens, files."""

import json
import re
import time
import urllib.parse
from pathlib import Path

import pytest

from meshplan.explanation.scenes import MECHANISMS, MODES

ARTEFACTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"

AXE = Path(__file__).with_name("axe.min.js")
SMALL = {
    "model": "llama-3.1-8b",
    "gpus": "16",
    "seq_len": "4096",
    "global_batch": "64",
}
PLAN = {"framework": "megatron", "tp": 2, "pp": 2, "zero": 1, "recompute": "full"}
WAIT = 90_000


def address(url, **state):
    values = {**SMALL, "plan": json.dumps(PLAN), "lang": "en", "theme": "light", **state}
    return f"{url}#{urllib.parse.urlencode(values, quote_via=urllib.parse.quote)}"


def ready(page, mechanism, mode, lang="en"):
    page.wait_for_selector(f'.see[data-ready="{mechanism}.{mode}.{lang}"]', timeout=WAIT)


def opened(page, url, **state):
    page.goto(address(url, **state))
    ready(
        page, state.get("see", "panorama"), state.get("mode", "overview"), state.get("lang", "en")
    )
    return page


def until(holds):
    """Wait in Python: the page's policy forbids what the browser driver would evaluate."""
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def shot(page, name):
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)


@pytest.mark.parametrize(("lang", "theme"), [("en", "light"), ("zh", "dark")])
def test_every_mechanism_in_every_mode(page, url, lang, theme):
    opened(page, url, lang=lang, theme=theme)
    captions = set()
    for mechanism in MECHANISMS:
        page.click(f".see [data-name={mechanism}]")
        for mode in MODES:
            page.click(f".see [data-name={mode}]")
            ready(page, mechanism, mode, lang)
            captions.add(page.inner_text(".caption"))
            drawn = page.locator(".picture svg > *").count()
            assert drawn or mode == "overview", (mechanism, mode)
            assert "undefined" not in page.inner_text(".see")
            assert not re.search(r"web\.|scene\.|\{", page.inner_text(".see"))
    assert len(captions) == len(MECHANISMS) * len(MODES)
    shot(page, f"wide-{lang}-{theme}")


def test_the_first_screen_answers(page, url):
    page.goto(f"{url}#lang=en")
    page.wait_for_selector("h1.fits", timeout=WAIT)
    assert "It fits" in page.inner_text("h1")
    assert page.locator("tbody tr").count() >= 5


def test_a_link_restores_everything(page, browser, url):
    opened(page, url, see="tensor", mode="transmission", lang="zh", theme="dark", t="1.50")
    page.click("text=厨房比喻")
    page.wait_for_timeout(600)
    link = page.evaluate("location.href")
    picture = page.inner_html(".picture svg")
    context = browser.new_context(viewport={"width": 1360, "height": 900})
    other = context.new_page()
    other.goto(link)
    ready(other, "tensor", "transmission", "zh")
    other.wait_for_timeout(400)
    assert other.inner_html(".picture svg") == picture
    assert other.inner_text("h1") == page.inner_text("h1")
    assert other.inner_text(".caption") == page.inner_text(".caption")
    assert other.get_attribute("html", "data-theme") == "dark"
    assert other.locator(".controls output").first.inner_text() == "1.5"
    context.close()


def test_keyboard_alone(page, url):
    opened(page, url, see="data", mode="transformation")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.focus("[data-name=data]")
    page.keyboard.press("ArrowRight")
    ready(page, "tensor", "transformation")
    page.focus(".stage")
    page.keyboard.press("Home")
    assert page.locator(".see output").first.inner_text() == "0.0"
    page.keyboard.press("ArrowRight")
    assert page.locator(".see output").first.inner_text() == "2.0"
    page.keyboard.press("End")
    assert page.locator(".see output").first.inner_text() == "8.0"
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    page.wait_for_timeout(700)
    assert float(page.locator(".see output").first.inner_text()) > 0


def test_reduced_motion_gives_a_stepper(browser, url):
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    opened(page, url, see="data", mode="transmission")
    assert page.get_by_role("button", name="Play").count() == 0
    before = page.locator(".see output").first.inner_text()
    page.get_by_role("button", name="Step forward").click()
    assert page.locator(".see output").first.inner_text() != before
    context.close()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_small_screens_do_not_scroll_sideways(browser, url, lang):
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    page = context.new_page()
    opened(page, url, lang=lang, see="pipeline", mode="output")
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 390
    shot(page, f"small-{lang}")
    context.close()


def test_a_pasted_config_and_a_wrong_one(page, url):
    opened(page, url)
    config = {
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
        "vocab_size": 32000, "tie_word_embeddings": False,
    }  # fmt: skip
    drop = """([selector, text]) => {
        const data = new DataTransfer();
        data.items.add(new File([text], 'config.json', {type: 'application/json'}));
        document.querySelector(selector).dispatchEvent(
            new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));
    }"""
    page.evaluate(drop, [".drop", json.dumps(config)])
    page.wait_for_selector("text=config.json in use")
    page.wait_for_selector(".status .spin", state="detached", timeout=WAIT)
    page.wait_for_selector("h1.fits", timeout=WAIT)
    page.evaluate(drop, [".drop", "{not json"])
    page.wait_for_selector("text=This file is no JSON object.")
    page.evaluate(drop, [".drop", json.dumps({"model_type": "llama", "hidden_size": -3})])
    page.wait_for_selector(".answer .problem", timeout=WAIT)
    assert "Hint" in page.inner_text(".answer .problem >> nth=0")
    # a refused request is an answer, though the browser logs its status
    page.faults[:] = [fault for fault in page.faults if "422" not in fault]


def test_a_long_search_shows_itself_and_can_be_cancelled(page, url):
    opened(page, url)
    page.fill("input[type=number] >> nth=0", "4096")
    page.wait_for_selector(".status .spin", timeout=WAIT)
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_selector("text=Cancelled.")
    assert page.locator(".status .spin").count() == 0


def test_illegal_degrees_are_greyed_with_their_rule(page, url):
    opened(page, url)
    page.get_by_role("button", name="Edit by hand").click()
    page.wait_for_selector(".chip[aria-disabled=true]", timeout=WAIT)
    chip = page.locator(".chip[aria-disabled=true]").first
    rule = chip.get_attribute("title")
    chip.dispatch_event("click")
    page.wait_for_selector(f".edit p[role=status]:has-text({json.dumps(rule[:24])})")
    legal = page.locator("[aria-label=PP] .chip[aria-disabled=false][aria-checked=false]").first
    legal.click()
    until(lambda: "TP2 PP2 " not in page.inner_text("h1"))


def test_plans_are_pinned_and_compared(page, url):
    opened(page, url)
    for number in (0, 1):
        page.locator("tbody tr button[aria-label^=Pin]").nth(number).click()
    page.wait_for_selector("text=Pinned plans side by side")


def test_the_pipeline_can_be_played_with(page, url):
    opened(page, url, see="pipeline", mode="output")
    before = page.inner_text(".caption")
    page.select_option(".playground select >> nth=0", "gpipe")
    until(lambda: page.inner_text(".caption") != before)


@pytest.mark.parametrize("kind", ["svg", "png", "yaml", "json", "trace", "report"])
def test_exports_are_saved(page, browser, url, kind, tmp_path):
    opened(page, url, see="data", mode="transmission")
    page.get_by_role("button", name="Export").click()
    with page.expect_download(timeout=WAIT) as saved:
        page.click(f"[data-kind={kind}]")
    file = tmp_path / saved.value.suggested_filename
    saved.value.save_as(file)
    assert file.stat().st_size > 200
    if kind == "report":
        context = browser.new_context(offline=True)
        report = context.new_page()
        asked = []
        report.on("request", lambda r: asked.append(r.url))
        report.goto(file.as_uri())
        assert report.locator("svg").count() == 28
        assert asked == [file.as_uri()]
        context.close()


@pytest.mark.parametrize(("lang", "theme"), [("en", "light"), ("zh", "dark")])
def test_accessibility(browser, url, lang, theme):
    context = browser.new_context(viewport={"width": 1360, "height": 900}, bypass_csp=True)
    page = context.new_page()
    opened(page, url, lang=lang, theme=theme, see="tensor", mode="output")
    page.get_by_role("button", name={"en": "Edit by hand", "zh": "手动修改"}[lang]).click()
    page.wait_for_selector(".chip", timeout=WAIT)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
    found = page.evaluate("tags => axe.run({runOnly: tags})", tags)
    broken = [(v["id"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found["violations"]]
    context.close()
    assert broken == []


def test_numbers_change_without_moving_the_page(page, url):
    opened(page, url)
    page.evaluate(
        """() => { window.shift = 0;
        new PerformanceObserver((list) => list.getEntries().forEach((e) => { shift += e.value; }))
            .observe({type: 'layout-shift', buffered: false}); }"""
    )
    for number in (1, 2, 3):
        page.locator("tbody .pick").nth(number).click()
        page.wait_for_timeout(500)
    assert page.evaluate("shift") < 0.1


def test_the_plan_in_hand_answers_before_the_search_does(page, url):
    opened(page, url)
    before = page.locator(".facts dd").first.inner_text()
    page.fill("input[type=number] >> nth=2", "128")
    until(lambda: page.locator(".facts dd").first.inner_text() != before)
    page.wait_for_selector(".status .spin", state="detached", timeout=WAIT)
    assert "TP2 PP2" in page.inner_text("h1")


def test_a_rank_lights_up_its_groups(page, url):
    opened(page, url)
    page.locator(".picture").scroll_into_view_if_needed()
    box = page.locator(".picture").bounding_box()
    cells = [(x / 40, y / 12) for y in range(2, 11) for x in range(2, 39)]
    said = ""
    for x, y in cells:
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        said = page.inner_text(".groups").strip()
        if said:
            break
    assert "TP 2 · DP 4 · PP 2" in said
