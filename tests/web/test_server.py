"""The server: same JSON as the command line, and nothing that a request should not get."""

import asyncio
import contextlib
import functools
import gc
import itertools
import json
import math
import re
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from meshplan.app.cli.main import run
from meshplan.app.web import scene as scene_module
from meshplan.app.web.answer import answer
from meshplan.app.web.pool import Pool, Results
from meshplan.app.web.run import listen
from meshplan.app.web.security import check_request
from meshplan.errors import UserError
from meshplan.inputs.load.profile import cluster_profile
from meshplan.inputs.vocabulary import FRAMEWORKS
from meshplan.learn import chapter_html
from meshplan.text import LANGUAGES, has, t
from results import VOLATILE

SCENARIO = {
    "model": "llama-3.1-8b",
    "cluster": "8xH100",
    "job": {"seq_len": 4096, "global_batch": 64},
}


@pytest.fixture(scope="module")
def client(url):
    with httpx.Client(base_url=url, timeout=120) as opened:
        yield opened


def printed(capsys, *arguments):
    run([*arguments, "--json"])
    return capsys.readouterr().out.rstrip("\n")


def steady(text):
    """The lines of a result that do not differ between two runs."""
    return [line for line in text.splitlines() if not any(f'"{k}"' in line for k in VOLATILE)]


@pytest.mark.parametrize(
    ("verb", "extra", "options"),
    [
        ("plan", {}, []),
        ("estimate", {"plan": {"tp": "2"}}, ["--tp", "2"]),
        ("explain", {"plan": {"tp": "2"}}, ["--tp", "2"]),
    ],
)
def test_the_app_sends_what_the_command_line_prints(client, capsys, verb, extra, options):
    sent = client.post(f"/api/{verb}", json={**SCENARIO, **extra})
    assert sent.status_code == 200, sent.text
    job = ["--cluster", "8xH100", "--seq-len", "4096", "--global-batch", "64"]
    shown = printed(capsys, verb, "llama-3.1-8b", *job, *options)
    assert steady(sent.text) == steady(shown)


def test_every_answer_carries_its_policy(client):
    for path in ("/", "/static/main.js", "/api/choices", "/nothing"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"


def test_foreign_hosts_and_origins_are_refused(client):
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400
    assert client.get("/api/choices", headers={"origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies_are_refused(client, chunked):
    body = b" " * (3 * 2**20)
    sent = client.post("/api/plan", content=iter([body]) if chunked else body)
    assert sent.status_code == 413


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"model": "/etc/passwd"}, "web_model_by_name"),
        ({"model": "./config.json"}, "web_model_by_name"),
        ({"model": "some-org/some-model"}, "web_model_by_name"),
        ({"cluster": "../cluster.yaml"}, "web_cluster_by_name"),
        ({"cluster": "cluster.yml"}, "web_cluster_by_name"),
        ({"cluster": {"base": "./cluster.yml"}}, "web_cluster_by_name"),
        ({"model": {"config": {}, "name": "../config.json"}}, "web_model_by_name"),
        ({"model": {"record": {"source": "/etc/passwd"}}}, "web_model_by_name"),
        ({"profile": "/srv/profile.yaml"}, "unknown_profile"),
        ({"runs": "/etc/passwd"}, "web_unknown_key"),
        ({"result": "/etc/passwd"}, "web_unknown_key"),
    ],
)
def test_no_path_of_a_request_is_opened(client, change, code):
    sent = client.post("/api/plan?lang=zh", json={**SCENARIO, **change})
    assert sent.status_code == 422
    problem = sent.json()["problems"][0]
    assert problem["code"] == code
    assert problem["message"]
    with pytest.raises(UserError):
        check_request({**SCENARIO, **change})


PROFILE = "fitted: {gemm: 0.5}\ncovers: {hopper: [attention, mlp]}\nband: {base: 0.05}\n"


def test_the_text_of_a_profile_counts_as_its_file_does(client, capsys, tmp_path):
    path = tmp_path / "profile.yaml"
    path.write_text(PROFILE, encoding="utf-8")
    job = ("--cluster", "8xH100", "--seq-len", "4096", "--global-batch", "64", "--tp", "2")
    file = json.loads(printed(capsys, "estimate", "llama-3.1-8b", *job, "--profile", str(path)))
    plan = {"plan": {"tp": 2}}
    for profile in (PROFILE, {"fitted": {"gemm": 0.5}, "covers": {"hopper": ["attention", "mlp"]},
                              "band": {"base": 0.05}}):  # fmt: skip
        sent = client.post("/api/estimate", json={**SCENARIO, **plan, "profile": profile}).json()
        assert sent["plans"] == file["plans"]
        # the echo is a scenario that gives the same again
        assert sent["scenario"]["profile"]["fitted"] == {"gemm": 0.5}
        again = client.post("/api/estimate", json={**sent["scenario"], **plan}).json()
        assert again["plans"] == sent["plans"]
    without = client.post("/api/estimate", json={**SCENARIO, **plan}).json()
    assert without["plans"][0]["time"] != sent["plans"][0]["time"]
    exported = client.post("/api/export/yaml", json={**SCENARIO, **plan, "profile": PROFILE}).text
    (tmp_path / "scenario.yaml").write_text(exported, encoding="utf-8")
    told = json.loads(printed(capsys, "estimate", str(tmp_path / "scenario.yaml")))
    assert told["plans"] == sent["plans"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("/etc/passwd\n", "no_profile"),
        ("../profile.yaml\n", "no_profile"),
        ("fitted: {gem: 1}\n", "unknown_key"),
        ("fitted: {gemm: -1}\n", "bad_profile"),
        ("fitted: [\n", "yaml_syntax"),
        ("\n\n", "no_profile"),
        ("fitted: {gemm: 1}\nruns: 5\n", "bad_runs"),
        ("[" * 5000 + "\n", "yaml_too_deep"),
    ],
)
def test_a_text_that_is_no_profile_is_refused_as_the_file_is(client, tmp_path, text, code):
    for lang in LANGUAGES:
        sent = client.post(f"/api/plan?lang={lang}", json={**SCENARIO, "profile": text})
        assert sent.status_code == 422
        (problem,) = sent.json()["problems"]
        assert problem["code"] == code and problem["message"] and problem["hint"]
    path = tmp_path / "profile.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=code):
        cluster_profile(str(path))


def test_problems_come_all_at_once_with_hints(client):
    bad = {**SCENARIO, "job": {"seq_len": -1, "global_batch": "many"}}
    problems = client.post("/api/plan", json=bad).json()["problems"]
    assert len(problems) >= 2
    assert all(p["hint"] for p in problems)


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'"x"', b"\xff", b"[" * 100_000])
def test_junk_is_refused_without_a_trace(client, body):
    for path in ("/api/plan", "/api/scene", "/api/legal", "/api/export/yaml", "/api/words/plan"):
        sent = client.post(path, content=body)
        assert sent.status_code in (413, 422), (path, sent.text)
        assert "Traceback" not in sent.text


def test_unknown_things_are_not_found(client):
    assert client.post("/api/nothing", json={}).status_code == 404
    assert client.post("/api/export/nothing", json={}).status_code == 404
    assert client.get("/static/../api.py").status_code == 404
    assert client.get("/static/%2e%2e/api.py").status_code == 404


def test_what_goes_wrong_inside_is_named_and_nothing_more(client, monkeypatch):
    request = {**SCENARIO, "plan": {}, "mechanism": "data", "mode": "output"}
    sent = client.post("/api/scene", json={**request, "what_if": 3})
    assert sent.status_code == 422

    def broken(*_, **__):
        raise ZeroDivisionError("a secret of /etc/passwd, line 7")

    monkeypatch.setattr(scene_module, "build_scene", broken)
    told = json.dumps(answer("scene", request))
    assert "fault" in json.loads(told)
    assert "secret" not in told
    assert "Traceback" not in told


@pytest.mark.parametrize("path", ["plan", "search"])
def test_a_search_that_nobody_waits_for_is_stopped(url, path):
    long = {
        "model": "deepseek-v3",
        "cluster": "16384xH100",
        "frameworks": ["megatron", "torchtitan", "deepspeed", "accelerate", "nanotron"],
        "job": {"seq_len": 8192, "global_batch": 16384},
        "objective": "pareto",
    }
    for _ in range(4):
        # a search says at once how far it is, a plan nothing until it is there: leave before that
        with (
            contextlib.suppress(httpx.ReadTimeout),
            httpx.stream("POST", f"{url}api/{path}", json=long, timeout=0.5) as response,
        ):
            said = next(response.iter_lines())
            assert path == "search" and "share" in said, "it was over before anybody left"
    # both workers were busy with it; a short one is answered since they were replaced
    answered = httpx.post(f"{url}api/plan", json={**SCENARIO, "top": 1}, timeout=180)
    assert answered.status_code == 200


def test_no_place_of_the_pool_is_lost_when_callers_are_cancelled_again_and_again():
    """A caller may be cancelled a second time while it cleans up."""
    long = {**SCENARIO, "cluster": "1024xH100", "objective": "pareto"}

    async def run_it():
        pool = Pool(2)
        await pool.start()
        try:
            for wait_s in (0.0, 0.01, 0.2, 0.4):
                asked = [asyncio.create_task(pool.ask("plan", long)) for _ in range(4)]
                await asyncio.sleep(wait_s)
                for _ in range(3):
                    for task in asked:
                        task.cancel()
                    await asyncio.sleep(0)
                ended = await asyncio.gather(*asked, return_exceptions=True)
                # asked for so much that nobody has an answer before leaving
                assert all(isinstance(end, asyncio.CancelledError) for end in ended) or wait_s > 0.1
            short = {"kind": "devices"}
            both = (pool.ask("list", short), pool.ask("list", short))
            return await asyncio.wait_for(asyncio.gather(*both), 120)
        finally:
            await pool.close()

    # in a thread of its own, since a browser of other tests may hold this one's event loop
    with ThreadPoolExecutor(1) as apart:
        answers = apart.submit(asyncio.run, run_it()).result()
    assert all("result" in answered for answered in answers)


def test_a_glance_is_an_estimate_without_its_search(client):
    """What a page shows while it searches never waits for a search itself."""
    full = {**SCENARIO, "model": "llama-3.1-70b", "plan": {"tp": 8, "micro_batch": 8}}
    estimate, glance = (client.post(f"/api/{v}", json=full).json() for v in ("estimate", "glance"))
    assert estimate["remedies"]
    assert glance == {**estimate, "remedies": []}


@pytest.mark.parametrize("plan", ["tp=2", [1], 3])
def test_a_plan_that_is_no_mapping_is_refused(client, plan):
    for path in ("/api/legal", "/api/estimate"):
        assert client.post(path, json={**SCENARIO, "plan": plan}).status_code == 422


def test_legal_values_name_the_rule_that_forbids_others(client):
    found = client.post("/api/legal", json={**SCENARIO, "plan": {"tp": 2}}).json()
    tp = {item["value"]: item for item in found["fields"]["tp"]}
    assert tp[2]["legal"]
    assert tp[8]["legal"]
    pipelines = found["fields"]["pp"]
    assert all(item["legal"] or item["why"] for item in pipelines)


def offered(client, variant="", model="mixtral-8x7b", precision="bf16", lang="en"):
    asked = {**SCENARIO, "model": model, "job": {**SCENARIO["job"], "precision": precision}}
    asked |= {"lang": lang} | ({"variant": variant} if variant else {"frameworks": ["megatron"]})
    sent = client.post("/api/settings", json=asked)
    assert sent.status_code == 200, sent.text
    return {item["name"]: item for item in sent.json()["settings"]}


def test_settings_are_those_of_model_precision_and_stack(client):
    assert {"flex", "overlapped-exchange", "graph-router"} <= offered(client).keys()
    dense = offered(client, model="llama-3.1-8b")
    assert not {"flex", "alltoall", "overlapped-exchange", "graph-router"} & dense.keys()
    assert "graph-layer" in dense and "graph-layer" not in offered(client)
    assert "tensorwise" in offered(client, precision="fp8").keys() - offered(client).keys()
    # what a stack does by itself is no choice, its contrary is one
    bridge = offered(client, "megatron-bridge", precision="fp8")
    assert {"alltoall", "delayed"} <= bridge.keys()
    assert not {"flex", "tensorwise", "fused-loss"} & bridge.keys()
    assert all(item["flags"] for item in bridge.values())


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_settings_that_go_with_no_plan_or_do_nothing_say_why(client, lang):
    found = offered(client, "megatron+graph-layer+flex", model="llama-3.1-8b", lang=lang)
    assert (found["flex"]["on"], found["flex"]["why"]) == (True, t("web.setting_idle", lang))
    parts = found["graph-attention"]
    assert (parts["on"], parts["legal"]) == (False, False)
    assert parts["why"] == t("rule.graphs_are_of_one_kind", lang)
    assert found["fp8-weights"]["why"] == t("rule.fp8_weights_need_fp8", lang)
    both = offered(client, "megatron+tp-overlap+overlapped-exchange", lang=lang)
    assert both["tp-overlap"]["why"] == t("web.setting_undone", lang)
    assert both["overlapped-exchange"]["why"] == ""
    # a search that has a legal setting on finds plans, one that has an illegal one finds none
    for name, legal in (("tp-overlap", True), ("fp8-weights", False)):
        asked = {**SCENARIO, "variant": f"megatron+{name}", "top": 1}
        assert client.post("/api/plan", json=asked).status_code == (200 if legal else 422)


def test_every_stack_is_described_in_both_languages(client):
    stacks = client.get("/api/choices").json()["stacks"]
    assert list(stacks) == list(FRAMEWORKS)
    for framework, names in stacks.items():
        assert names[0] == framework
        assert [n for n in names for lang in LANGUAGES if not has(f"web.stack.{n}", lang)] == []


@pytest.mark.parametrize("kind", ["yaml", "json", "trace", "report"])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_exports(client, kind, lang, tmp_path, capsys):
    request = {**SCENARIO, "plan": {"tp": 2, "pp": 2, "recompute": "full:2"}}
    sent = client.post(f"/api/export/{kind}?lang={lang}", json=request)
    assert sent.status_code == 200, sent.text
    assert "attachment" in sent.headers["content-disposition"]
    if kind == "yaml":
        file = tmp_path / "scenario.yaml"
        file.write_text(sent.text, encoding="utf-8")
        again = json.loads(printed(capsys, "estimate", str(file)))["plans"][0]
        direct = client.post("/api/estimate", json=request).json()["plans"][0]
        assert again == direct
    elif kind == "trace":
        check_trace(sent.json())
    elif kind == "report":
        assert "<script" not in sent.text
        assert "http://" not in sent.text.replace("http://www.w3.org/2000/svg", "")
        assert sent.text.count("<svg") == 28


def check_trace(trace):
    """Every rule of the trace event format that Perfetto's importer relies on.

    Complete events and metadata alone, whole-number ids above 0 (0 is the idle process), finite
    times in ascending order, named processes and threads, slices of a thread one after another.
    """
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events = trace["traceEvents"]
    assert {e["ph"] for e in events} == {"X", "M"}
    for event in events:
        assert isinstance(event["name"], str)
        assert all(isinstance(event[key], int) and event[key] > 0 for key in ("pid", "tid"))
        assert math.isfinite(event["ts"])
        assert event["ts"] >= 0
        assert isinstance(event.get("args", {}), dict)
    named = {(e["name"], e["pid"]) for e in events if e["ph"] == "M"}
    slices = [e for e in events if e["ph"] == "X"]
    assert slices
    assert [e["ts"] for e in slices] == sorted(e["ts"] for e in slices)
    tracks = {(e["pid"], e["tid"]) for e in slices}
    assert len({tid for _, tid in tracks}) == len(tracks)
    for track in tracks:
        assert {("process_name", track[0]), ("thread_name", track[0])} <= named
        own = [(e["ts"], e["dur"]) for e in slices if (e["pid"], e["tid"]) == track]
        assert all(math.isfinite(length) and length >= 0 for _, length in own)
        # times become whole nanoseconds, rounded (json_trace_tokenizer.cc) or, before 2025, cut
        for whole in (round, int):
            spans = [(whole(start * 1000.0), whole(length * 1000.0)) for start, length in own]
            for (start, length), (after, _) in itertools.pairwise(spans):
                assert start + length <= after


def told(client, request, lang="en"):
    with client.stream("POST", f"/api/search?lang={lang}", json=request) as sent:
        assert sent.status_code == 200
        return [json.loads(line) for line in sent.iter_lines()]


def test_a_search_tells_its_answer_before_it_knows_all(client):
    request = {**SCENARIO, "cluster": "16xH100", "top": 3}
    lines = told(client, request, "zh")
    assert lines[-1] == {"done": True}
    answers = [line for line in lines if "result" in line]
    first, second, third, whole = (line["result"] for line in answers)
    order = ("reasons", "switches", "flips")
    for early, later in ((first, order), (second, order[1:]), (third, order[2:])):
        assert all(early[name] == [] for name in later)
        assert all(whole[name] for name in later)
        same = early.keys() - {*later, "searched"}
        assert {name: early[name] for name in same} == {name: whole[name] for name in same}
    assert second["searched"]["num_exact"] >= first["searched"]["num_exact"]
    assert all(line["words"]["headline"].startswith("放得下") for line in answers)
    direct = client.post("/api/plan", json=request).json()
    assert direct == whole
    # asked again it is there at once
    assert [list(line) for line in told(client, request)] == [["result", "words"], ["done"]]


def test_a_search_says_what_is_wrong_in_its_lines(client):
    (line,) = told(client, {**SCENARIO, "job": {"seq_len": -1, "global_batch": 8}})
    assert line["problems"][0]["hint"]
    assert client.post("/api/search", json={**SCENARIO, "model": "/etc/passwd"}).status_code == 422


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_guide_is_the_one_of_the_command_line(client, capsys, lang):
    listed = client.get(f"/api/guide?lang={lang}").json()["chapters"]
    run(["learn", "--json", "--lang", lang])
    assert json.loads(capsys.readouterr().out)["chapters"] == listed
    assert len(listed) == 11
    for chapter in listed:
        sent = client.get(f"/api/guide/{chapter['id']}?lang={lang}").json()
        assert sent["html"] == chapter_html(chapter["id"], lang)
        assert 'class="widget"' in sent["html"]
        assert 'class="quiz"' in sent["html"]
    assert client.get("/api/guide/nothing").status_code == 422
    assert client.get("/api/guide/..%2f..%2fREADME").status_code in (404, 422)


def test_pictures_of_the_guide_can_be_drawn(client):
    """What a chapter gives to a picture is a scenario and a legal plan."""
    for chapter in client.get("/api/guide").json()["chapters"]:
        text = client.get(f"/api/guide/{chapter['id']}").json()["html"]
        for options in re.findall(r'<div class="widget"([^>]*)>', text):
            data = dict(re.findall(r'data-([\w-]+)="([^"]*)"', options))
            job = {"seq_len": int(data["seq-len"]), "global_batch": int(data["global-batch"])}
            known = ("model", "cluster", "seq-len", "global-batch", "framework")
            fields = {k.replace("-", "_"): v for k, v in data.items() if k not in known}
            view = {key: fields.pop(key) for key in ("mechanism", "mode")}
            request = {"model": data["model"], "cluster": data["cluster"], "job": job, **view}
            request |= {"frameworks": [data["framework"]], "plan": fields}
            sent = client.post("/api/scene", json=request)
            assert sent.status_code == 200, (chapter["id"], sent.text)


def test_what_is_kept_is_bounded():
    """Requests that differ grow nothing without a limit: caches of functions, scenes, answers."""
    requests = [
        {
            "model": model,
            "cluster": f"{gpus}xH100",
            "job": {"seq_len": 2048 + 128 * i, "global_batch": 256},
            "plan": {"tp": tp},
        }
        for i, (model, gpus, tp) in enumerate(
            itertools.product(("llama-3.1-8b", "qwen3-30b-a3b"), (8, 16, 32), (1, 2, 4))
        )
    ]

    def ask(some):
        for request in some:
            for verb, extra in (
                ("estimate", {}),
                ("scene", {"mechanism": "data", "mode": "output"}),
            ):
                assert "fault" not in answer(verb, {**request, **extra})

    def caches():
        found = [o for o in gc.get_objects() if isinstance(o, functools._lru_cache_wrapper)]
        own = [o for o in found if (getattr(o, "__module__", "") or "").startswith("meshplan")]
        return {f"{o.__module__}.{o.__qualname__}": o.cache_info() for o in own}

    ask(requests[::2])
    before = caches()
    ask(requests[1::2])
    after = caches()
    grown = {
        name: info.currsize
        for name, info in after.items()
        if info.maxsize is None and info.currsize > before[name].currsize
    }
    assert grown == {}
    assert len(scene_module._kept) <= scene_module._MOST_KEPT
    results = Results(most=3, most_bytes=100)
    for i in range(50):
        results.put(str(i), "x" * 40)
    assert len(results) == 2


def test_a_port_in_use_gives_way_to_the_next():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with listen("127.0.0.1", port) as other:
            assert other.getsockname()[1] != port


def test_many_clients_at_once(url):
    """Fifty clients, a few seconds: no error. ``tools/load_web.py`` does it for a minute."""

    def work(_):
        with httpx.Client(base_url=url, timeout=120) as client:
            plans = ({**SCENARIO, "plan": {"tp": tp}} for tp in (1, 2, 4))
            return [client.post("/api/estimate", json=plan) for plan in plans]

    with ThreadPoolExecutor(50) as clients:
        sent = [answered for each in clients.map(work, range(50)) for answered in each]
    assert [answered.text for answered in sent if answered.status_code != 200] == []
    degrees = [answered.json()["plans"][0]["plan"]["tp"] for answered in sent]
    assert degrees == [1, 2, 4] * 50  # nobody got the answer of another


def test_trying_something_out_is_no_failed_request(client):
    asked = {**SCENARIO, "plan": {"tp": 3}}
    assert client.post("/api/estimate", json=asked).status_code == 422
    tried = client.post("/api/estimate?soft=1", json=asked)
    assert tried.status_code == 200
    assert tried.json()["problems"]
