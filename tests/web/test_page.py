"""The page in a real browser: every picture, links, keyboard, small screens, files."""

import csv
import json
import re
import time
import urllib.parse
from pathlib import Path

import pytest

from meshplan.cost.step import PARTS
from meshplan.explanation.scenes import MECHANISMS, MODES
from meshplan.text import t

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
    until(lambda: "words=kitchen" in page.evaluate("location.href"))
    link = page.evaluate("location.href")
    picture = page.inner_html(".picture svg")
    context = browser.new_context(viewport={"width": 1360, "height": 900})
    other = context.new_page()
    other.goto(link)
    ready(other, "tensor", "transmission", "zh")
    until(lambda: other.inner_html(".picture svg") == picture)
    assert other.inner_text("h1") == page.inner_text("h1")
    assert other.inner_text(".caption") == page.inner_text(".caption")
    assert other.get_attribute("html", "data-theme") == "dark"
    assert other.locator(".controls output").first.inner_text() == "1.5"
    context.close()


@pytest.mark.parametrize("plan", ["[]", '"abc"', "{oops", '{"foo": 1}', '{"tp": 3}'])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_link_with_a_plan_that_cannot_be_shown_says_so(page, url, plan, lang):
    opened(page, url, plan=plan, lang=lang)
    page.wait_for_selector(".notice", timeout=WAIT)
    code = "web.plan_gone" if "tp" in plan else "web.link_unread"
    assert t(code, lang) in page.inner_text(".notice")
    page.locator("tbody .pick").nth(1).click()  # another choice, and it is over
    until(lambda: page.locator(".notice").count() == 0)


def test_words_follow_the_moment(page, url):
    opened(page, url, see="pipeline", mode="transformation")
    page.focus(".stage")
    told = []
    page.keyboard.press("Home")
    for _ in range(4):
        told.append(page.inner_text(".beat span:not(.off)"))
        page.keyboard.press("ArrowRight")
    assert len(set(told)) >= 2
    height = page.locator(".beat").bounding_box()["height"]
    page.keyboard.press("Home")
    assert page.locator(".beat").bounding_box()["height"] == height


@pytest.mark.parametrize("width", [390, 700, 800, 1024, 1120, 1440])
def test_bars_have_their_room_at_every_width(browser, url, width):
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    opened(page, url, lang="zh")
    for bar in page.locator(".parts .track, .bars .track").all():
        assert bar.bounding_box()["width"] >= 36
    # letters of a picture are not shrunk to where nobody reads them
    text = page.locator(".picture svg text").first
    scale = text.evaluate("node => node.getScreenCTM().a")
    assert scale * 13 >= 9
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
    until(lambda: float(page.locator(".see output").first.inner_text()) > 0)


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


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_pictures_are_laid_out_for_a_phone(browser, url, lang):
    """They fit the screen, their letters are not shrunk, and a person is spared no picture."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    page = context.new_page()
    opened(page, url, lang=lang)
    for mechanism in MECHANISMS:
        page.click(f".see [data-name={mechanism}]")
        for mode in MODES:
            page.click(f".see [data-name={mode}]")
            ready(page, mechanism, mode, lang)
            stage, picture = page.locator(".see .stage"), page.locator(".see .picture svg")
            assert stage.evaluate("node => node.scrollWidth <= node.clientWidth")
            units = float(picture.get_attribute("viewBox").split()[2])
            wide = picture.bounding_box()["width"]
            assert 13 * wide / units > 10  # px of the smallest letters but those on boxes
    context.close()


DROP = """([selector, text, name]) => {
    const data = new DataTransfer();
    data.items.add(new File([text], name));
    document.querySelector(selector).dispatchEvent(
        new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));
}"""


def test_a_pasted_config_and_a_wrong_one(page, url):
    opened(page, url)
    config = {
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
        "vocab_size": 32000, "tie_word_embeddings": False,
    }  # fmt: skip
    before = page.inner_text(".answer .facts")
    page.evaluate(DROP, ["#own-model", json.dumps(config), "config.json"])
    page.wait_for_selector("text=config.json in use")
    page.wait_for_selector("h1.fits", timeout=WAIT)
    until(lambda: page.inner_text(".answer .facts") != before)
    page.evaluate(DROP, ["#own-model", "{not json", "config.json"])
    page.wait_for_selector("text=This file is no JSON object.")
    wrong = json.dumps({"model_type": "llama", "hidden_size": -3})
    page.evaluate(DROP, ["#own-model", wrong, "config.json"])
    page.wait_for_selector(".answer .problem", timeout=WAIT)
    assert "Hint" in page.inner_text(".answer .problem >> nth=0")
    # a refused request is an answer, though the browser logs its status
    page.faults[:] = [fault for fault in page.faults if "422" not in fault]


def settled(page, value):
    """A value of the page once the search is over and it stays."""
    seen = [value()]
    until(lambda: (time.sleep(0.5), seen.append(value()), seen[-1] == seen[-2])[-1])
    return seen[-1]


PROFILE = "fitted: {gemm: 0.4}\nband: {base: 0.05}\n"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_profile_is_dropped_pasted_or_chosen_and_kept_in_the_link(page, url, lang, tmp_path):
    opened(page, url, lang=lang)
    facts = lambda: page.inner_text(".answer .facts")  # noqa: E731
    before = settled(page, facts)
    page.evaluate(DROP, ["#own-profile", PROFILE, "profile.yaml"])
    page.wait_for_selector(f"text={t('web.profile_pasted', lang)}")
    until(lambda: facts() != before)
    own = settled(page, facts)
    # a link brings it back
    until(lambda: "profile=" in page.evaluate("location.href"))
    link = page.evaluate("location.href")
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_selector(".answer .facts", timeout=WAIT)
    assert settled(page, facts) == own
    assert page.locator("#own-profile textarea").input_value().startswith("fitted:")
    # another one is pasted: refused in words, and taken when it is mended
    page.locator("#own-profile textarea").fill("fitted: {gem: 1}")
    page.locator("#own-profile textarea").blur()
    page.wait_for_selector(".answer .problem", timeout=WAIT)
    assert "gemm" in page.inner_text(".answer .problem >> nth=0")
    path = tmp_path / "profile.yaml"
    path.write_text(PROFILE, encoding="utf-8")
    page.locator("#own-profile input[type=file]").set_input_files(path)
    page.wait_for_selector(".answer .problem", state="detached", timeout=WAIT)
    until(lambda: facts() == own)
    page.click("#own-profile button")
    until(lambda: facts() == before)
    until(lambda: "profile=" not in page.evaluate("location.href"))
    # a refused request is an answer, though the browser logs its status
    page.faults[:] = [fault for fault in page.faults if "422" not in fault]


def test_a_file_that_is_too_large_is_not_read(page, url, tmp_path):
    opened(page, url)
    path = tmp_path / "trace.json"
    path.write_text("x" * 600_000, encoding="utf-8")
    page.click("#own-profile > summary")
    page.locator("#own-profile input[type=file]").set_input_files(path)
    page.wait_for_selector(f"text={t('web.file_too_large', 'en')}")


def test_a_long_search_shows_itself_and_can_be_cancelled(page, url):
    opened(page, url)
    page.route("**/api/search*", lambda route: None)  # as long as it takes: until it is cancelled
    page.get_by_label("Objective").select_option("cheapest")
    page.locator("aside input[type=number]").first.fill("16384")
    page.wait_for_selector("[role=progressbar]", timeout=WAIT)
    # what is still shown answers the inputs before
    page.locator(".stale").nth(2).wait_for(timeout=WAIT)
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_selector("text=Cancelled.")
    assert page.locator(".status .spin").count() == 0
    assert page.locator(".stale").count() == 0


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


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_setting_worth_turning_on_is_one_key(page, url, lang):
    """The keyboard plans with it and without it again, and keeps its place; a link keeps it too."""
    opened(page, url, lang=lang, plan="")
    page.wait_for_selector("ul.settings button", timeout=WAIT)
    asked = page.locator("ul.settings button").first
    name = asked.get_attribute("data-setting")
    said = t(f"switch.name.{name}", lang)
    assert asked.get_attribute("aria-label") == f"{t('web.plan_with', lang)}: {said}"
    before = page.locator(".facts dd").first.inner_text()
    asked.focus()
    page.keyboard.press("Enter")
    until(lambda: f"megatron+{name}" in urllib.parse.unquote(page.evaluate("location.hash")))
    assert page.evaluate("document.activeElement.dataset.setting") == name
    without = page.locator(f"[data-setting={name}]")
    assert without.get_attribute("aria-label") == f"{t('web.plan_without', lang)}: {said}"
    until(lambda: page.locator(".verdict .with").count() == 1)
    assert said in page.inner_text(".verdict .with")
    until(lambda: page.locator(".facts dd").first.inner_text() != before)
    page.wait_for_selector(".status .spin", state="detached", timeout=WAIT)
    # and what is drawn anew since then has not taken the keyboard away
    assert page.evaluate("document.activeElement.dataset.setting") == name
    shot(page, f"settings-{lang}")

    page.reload()  # the form shows it, and takes it back
    box = page.locator(f"#setting-{name}")
    box.wait_for(timeout=WAIT)
    assert box.is_checked()
    page.wait_for_selector(".verdict .with", timeout=WAIT)
    box.focus()
    page.keyboard.press("Space")
    until(lambda: "variant" not in page.evaluate("location.hash"))
    until(lambda: page.locator(".verdict .with").count() == 0)
    until(lambda: page.locator(".facts dd").first.inner_text() == before)


def test_the_form_offers_what_a_framework_has(page, url):
    opened(page, url, variant="megatron+graph-attention")
    whole = page.locator("#setting-graph-layer")
    whole.wait_for(timeout=WAIT)
    assert whole.is_disabled()  # beside graphs of parts
    assert (
        page.inner_text("#setting-graph-layer-notes .why-not").lower()
        == t("rule.graphs_are_of_one_kind", "en").lower()
    )
    assert page.locator("#setting-flex").count() == 0  # a dense model sends no tokens to experts
    framework = page.locator("label:has(> span:text-is('Framework')) select")
    framework.select_option("torchtitan")
    until(lambda: "variant" not in page.evaluate("location.hash"))
    assert page.locator(".settings .tick").count() == 0
    stack = page.get_by_label(t("web.stack", "en"))
    names = stack.locator("option").all_inner_texts()
    assert names == ["torchtitan", "torchtitan-eager", "torchtitan-async-tp"]
    stack.select_option("torchtitan-eager")
    assert page.inner_text(".about") == t("web.stack.torchtitan-eager", "en")
    until(lambda: "variant=torchtitan-eager" in page.evaluate("location.hash"))
    framework.select_option("nanotron")
    until(lambda: page.locator("details.settings").count() == 0)  # one stack, nothing to choose


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


def test_the_table_is_saved_as_csv(page, url, tmp_path):
    opened(page, url)
    with page.expect_download(timeout=WAIT) as saved:
        page.click("#csv")
    file = tmp_path / saved.value.suggested_filename
    saved.value.save_as(file)
    rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 8
    assert rows[0]["rank"] == "1"
    assert {row["plan_framework"] for row in rows} == {"megatron"}
    step = sum(float(value) for name, value in rows[0].items() if name in PARTS)
    assert step == pytest.approx(float(rows[0]["step_time_s"]), rel=1e-9)


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


def open_plan(page, url, lang, theme):
    opened(page, url, lang=lang, theme=theme, see="tensor", mode="transmission")
    page.get_by_role("button", name={"en": "Edit by hand", "zh": "手动修改"}[lang]).click()
    page.wait_for_selector(".chip", timeout=WAIT)
    page.locator(".formulas summary").first.click()
    page.wait_for_selector(".equation", timeout=WAIT)
    page.click("details.settings > summary")
    page.click("#own-profile > summary")
    page.wait_for_selector(".settings .tick", timeout=WAIT)
    page.wait_for_selector("ul.settings button", timeout=WAIT)


def open_guide(page, url, lang, theme):
    page.goto(address(url, lang=lang, theme=theme, page="guide", chapter="beyond"))
    page.wait_for_selector(".inline[data-ready*='.']", timeout=WAIT)


@pytest.mark.parametrize("part", [open_plan, open_guide])
@pytest.mark.parametrize(("lang", "theme"), [("en", "light"), ("zh", "dark")])
def test_accessibility(browser, url, lang, theme, part):
    context = browser.new_context(viewport={"width": 1360, "height": 900}, bypass_csp=True)
    page = context.new_page()
    part(page, url, lang, theme)
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
    page.locator("aside input[type=number]").nth(2).fill("128")
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


@pytest.mark.parametrize(("lang", "theme"), [("en", "light"), ("zh", "dark")])
def test_every_chapter_is_in_the_app(page, url, lang, theme):
    opened(page, url, lang=lang, theme=theme)
    page.click("[data-page=guide]")
    page.wait_for_selector(f".chapter[data-ready$='.{lang}']")
    names = page.eval_on_selector_all("[data-chapter]", "all => all.map(x => x.dataset.chapter)")
    assert len(names) == 11
    for name in names:
        page.click(f"[data-chapter={name}]")
        page.wait_for_selector(f".chapter[data-ready='{name}.{lang}']")
        page.wait_for_selector(".inline[data-ready*='.']", timeout=WAIT)
        assert page.locator(".prose math").count()
        assert page.locator(".quiz").count()
        answer = page.locator(".quiz details p").first
        assert not answer.is_visible()
        page.locator(".quiz summary").first.click()
        assert answer.is_visible()
        assert not re.search(r"web\\.|scene\\.|\\{\\{|undefined", page.inner_text(".chapter"))
        shot(page, f"guide-{name}-{lang}-{theme}")


def test_a_picture_of_the_guide_leads_into_the_app(page, url):
    page.goto(address(url, page="guide", chapter="pipeline"))
    page.wait_for_selector(".inline[data-ready='pipeline.output.example']", timeout=WAIT)
    example = page.inner_text(".inline .caption")
    page.wait_for_selector(".inline button:not([disabled]) >> text=/^Your plan$/", timeout=WAIT)
    page.get_by_role("button", name="Your plan", exact=True).first.click()
    page.wait_for_selector(".inline[data-ready='pipeline.output.own']", timeout=WAIT)
    until(lambda: page.inner_text(".inline .caption") != example)
    own = page.inner_text(".inline .caption")
    page.click("[data-go=own]")
    ready(page, "pipeline", "output")
    until(lambda: page.inner_text(".see .caption") == own)
    # and back to the chapter about it
    page.get_by_role("button", name="Read about it: Pipeline").click()
    page.wait_for_selector(".chapter[data-ready='pipeline.en']")
    page.click("[data-go=example]")
    ready(page, "pipeline", "output")
    until(lambda: page.inner_text(".see .caption") == example)


def test_a_link_opens_a_place_of_the_guide(page, url):
    page.goto(address(url, page="guide", chapter="data", at="sharding"))
    page.wait_for_selector(".chapter[data-ready='data.en']")
    until(lambda: page.evaluate("scrollY") > 300)


def drag(session, start, end, *, steps, wait):
    """A finger that goes down, moves and lifts, as Chromium's input sees it.

    The events carry their own times, so that a slow machine does not turn a flick into a scrub.
    """
    began = time.time()

    def send(kind, points, turn):
        said = {"type": kind, "touchPoints": points, "timestamp": began + turn * wait}
        session.send("Input.dispatchTouchEvent", said)

    send("touchStart", [{"x": start[0], "y": start[1]}], 0)
    for i in range(1, steps + 1):
        x = start[0] + (end[0] - start[0]) * i / steps
        send("touchMove", [{"x": x, "y": start[1]}], i)
    send("touchEnd", [], steps)


def test_fingers_scrub_and_step(browser, url):
    size = {"width": 1200, "height": 800}
    context = browser.new_context(viewport=size, has_touch=True, is_mobile=True)
    page = context.new_page()
    opened(page, url, see="data", mode="transformation")
    page.locator(".stage").scroll_into_view_if_needed()
    session = context.new_cdp_session(page)
    box = page.locator(".stage").bounding_box()
    y = box["y"] + box["height"] / 2
    clock = page.locator(".see output").first
    page.locator(".stage").focus()
    page.keyboard.press("Home")
    left, right = (box["x"] + box["width"] * share for share in (0.2, 0.7))
    drag(session, (left, y), (right, y), steps=10, wait=0.06)
    until(lambda: 3.0 < float(clock.inner_text()) < 5.0)  # half the width is half the time
    before = float(clock.inner_text())
    drag(session, (right, y), (left, y), steps=2, wait=0.01)
    until(lambda: float(clock.inner_text()) > before)
    assert float(clock.inner_text()) in (2.0, 4.0, 6.0, 8.0)  # a flick goes to the next stop
    context.close()


def test_a_finger_on_a_rank_lights_up_its_groups(browser, url):
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    page = context.new_page()
    opened(page, url, see="panorama", mode="overview")
    page.locator(".picture").scroll_into_view_if_needed()
    box = page.locator(".picture").bounding_box()
    for x, y in [(x / 40, y / 12) for y in range(3, 10) for x in range(2, 18)]:
        page.touchscreen.tap(box["x"] + x * box["width"], box["y"] + y * box["height"])
        if "TP 2" in page.inner_text(".groups"):
            break
    assert "TP 2 · DP 4 · PP 2" in page.inner_text(".groups")
    context.close()


def test_a_ring_can_be_turned_into_a_tree(page, url):
    opened(page, url, see="data", mode="transmission")
    before = page.inner_text(".see")
    page.get_by_role("button", name="Double binary tree").click()
    until(lambda: page.locator(".picture text", has_text="second tree").count() == 1)
    assert page.inner_text(".see") != before
    until(lambda: "tree" in page.evaluate("decodeURIComponent(location.hash)"))


def test_formulas_stand_with_their_numbers_and_sources(page, url):
    opened(page, url)
    page.locator(".formulas summary").first.click()
    page.wait_for_selector(".equation", timeout=WAIT)
    assert page.locator(".formula").count() >= 15
    text = page.locator(".formula", has_text="data-parallel degree").inner_text()
    assert "16 / (2 × 2 × 1)" in text
    assert "= 4" in text
    page.locator(".formula details summary").first.click()
    assert page.locator(".formula li").first.is_visible()


def test_the_pareto_front_is_searched_when_it_is_looked_at(page, url):
    opened(page, url)
    page.locator(".pareto").scroll_into_view_if_needed()
    page.wait_for_selector(".pareto .dot", timeout=WAIT)
    assert page.locator(".pareto .dot").count() > 5
    assert page.locator(".pareto .mine").count() == 1
    # and by keyboard: arrows say which plan, Enter takes it
    page.focus(".pareto svg")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    said = page.inner_text("#pareto-said")
    assert "GPU:" in said
    page.keyboard.press("Enter")
    until(lambda: said.split(",")[0] in page.inner_text("h1"))


def test_a_budget_gives_days_and_cost_and_weighs_the_cheapest(page, url):
    opened(page, url, tokens="1T", price="2.5")
    page.wait_for_selector(".facts :text('days')", timeout=WAIT)
    assert "$" in page.inner_text(".facts")
    page.get_by_label("Objective").select_option("cheapest")
    # not by the sign that it searches: a quick answer takes it away before anybody looks
    page.wait_for_selector("thead :text('GPU-hours')", timeout=WAIT)
    assert page.faults == []


def test_back_brings_the_inputs_before(page, url):
    opened(page, url)
    page.wait_for_selector("#recent", timeout=WAIT)
    batch = page.locator("aside input[type=number]").nth(2)
    batch.fill("128")
    until(lambda: page.evaluate("history.length") > 2)
    page.go_back()
    until(lambda: batch.input_value() == "64")
    page.click("#recent")
    assert page.locator(".menu .wide button").count() >= 2


def test_back_goes_through_pages_and_chapters_and_keeps_the_language(page, url):
    opened(page, url)
    page.click("[data-page=guide]")
    page.wait_for_selector(".chapter[data-ready='panorama.en']", timeout=WAIT)
    for chapter in ("data", "tensor"):
        page.click(f"[data-chapter={chapter}]")
        page.wait_for_selector(f".chapter[data-ready='{chapter}.en']", timeout=WAIT)
    page.click("#language")
    page.wait_for_selector(".chapter[data-ready='tensor.zh']", timeout=WAIT)
    for chapter in ("data", "panorama"):
        page.go_back()
        page.wait_for_selector(f".chapter[data-ready='{chapter}.zh']", timeout=WAIT)
    page.go_back()
    ready(page, "panorama", "overview", "zh")
    page.go_forward()
    page.wait_for_selector(".chapter[data-ready='panorama.zh']", timeout=WAIT)


def test_a_reader_keeps_place_and_moment_in_another_language(page, url):
    page.goto(address(url, page="guide", chapter="data"))
    page.wait_for_selector(".inline[data-ready='data.transmission.example']", timeout=WAIT)
    picture = page.locator(".inline").nth(1)
    picture.scroll_into_view_if_needed()
    picture.locator(".stage").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    moment = picture.locator("output").inner_text()
    top = picture.bounding_box()["y"]
    # not by the mouse, for which the browser driver would scroll
    page.locator("#language").dispatch_event("click")
    page.wait_for_selector(".chapter[data-ready='data.zh']", timeout=WAIT)
    page.wait_for_selector(".inline[data-ready='data.transmission.example']", timeout=WAIT)
    until(lambda: abs(picture.bounding_box()["y"] - top) < 100)
    assert picture.locator("output").inner_text() == moment


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_precision_that_a_device_lacks_is_said_in_words_of_the_form(page, url, lang):
    page.goto(address(url, lang=lang, device="V100-32GB", plan=""))
    problem = page.locator(".answer .problem")
    problem.wait_for(timeout=WAIT)
    said = problem.inner_text()
    assert said.startswith(t("web.precision", lang))
    assert "--set" not in said
    assert "job." not in said
    problem.get_by_role("button", name="fp16").click()  # and mended by a click
    page.wait_for_selector("h1.fits", timeout=WAIT)
    # a refused request is an answer, though the browser logs its status
    page.faults[:] = [fault for fault in page.faults if "422" not in fault]


def test_a_picture_that_a_link_asks_for_in_vain_is_shown_as_planned(page, url):
    asked = json.dumps({"schedule": "nothing", "pp": 2})
    opened(page, url, see="pipeline", mode="output", **{"if": asked})
    until(lambda: "if=" not in page.evaluate("location.hash"))
    page.faults[:] = [fault for fault in page.faults if "422" not in fault]


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_the_app_at_every_width(browser, url, width):
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    for lang, theme in (("en", "dark"), ("zh", "light")):
        for part in ("plan", "guide"):
            opened(page, url, lang=lang, theme=theme) if part == "plan" else page.goto(
                address(url, lang=lang, theme=theme, page=part, chapter="scenarios")
            )
            page.reload()
            page.wait_for_selector(".see[data-ready*='.']", timeout=WAIT)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            shot(page, f"{part}-{width}-{lang}-{theme}")
    context.close()
