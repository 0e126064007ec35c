"""The page of official recipes says what the tool finds: its counts, and a sample of its rows."""

import importlib.util
import sys
from pathlib import Path

import pytest

from meshplan.cost.step import PARTS
from meshplan.text import LANGUAGES, has, t
from recipes import rows_of
from shared_data import find_shared

ROOT = Path(__file__).resolve().parents[2]
SHARED = find_shared()
EVERY = 60
"""One recipe of so many is judged again; searches are left out."""

pytestmark = pytest.mark.skipif(
    SHARED is None, reason="measured data is absent: set MESHPLAN_SHARED"
)


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("recipes_tool", ROOT / "tools" / "recipes.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def lines_of(lang):
    text = (ROOT / "docs" / lang / "recipes.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    # the published runs have a table with fewer columns
    return text, [line for line in lines if line.startswith("| `") and line.count("|") == 8]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_counts_are_those_of_the_rows(lang):
    text, lines = lines_of(lang)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    illegal = t("docs.recipes.illegal", lang, rules="").strip()
    legal = [row for row in cells if illegal not in row[3]]
    fits = [row for row in legal if t("docs.recipes.oom", lang) not in row[3]]
    beside = [row for row in cells if row[4] != "-"]
    instead = [row for row in beside if row[4].endswith(")")]
    numbers = {"recipes": len(cells), "legal": len(legal)}
    numbers |= {"fits": len(fits), "beside": len(beside), "instead": len(instead)}
    assert t("docs.recipes.top", lang, **numbers) in text
    # factors are printed with two digits, so that those printed as the limit fall on either side
    factors = [float(row[6]) for row in fits if row[6]]
    above, at = sum(factor > 1.3 for factor in factors), factors.count(1.3)
    counts = range(above, above + at + 1)
    assert any(t("docs.recipes.doubts", lang, suspicious=number) in text for number in counts)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_sample_of_rows_is_what_the_tool_finds(tool, lang):
    _, lines = lines_of(lang)
    rows = rows_of(SHARED)
    assert len(lines) == len(rows)
    for row, line in list(zip(rows, lines, strict=True))[::EVERY]:
        found = tool.judge(row, search=False)
        cells = [cell.strip() for cell in tool.line_of(found, lang).strip("|").split("|")]
        seen = [cell.strip() for cell in line.strip("|").split("|")]
        # name, place and plan; times move with the cost model, verdicts hardly ever
        assert seen[:3] == cells[:3]
        assert bool(found.rules) == (t("docs.recipes.illegal", lang, rules="").strip() in seen[3])


def test_alike_questions_are_searched_once(tool, monkeypatch):
    rows = [row for row in rows_of(SHARED) if row["recipe"].startswith("llama32_1b")] * 2
    asked = []
    monkeypatch.setattr(tool, "_ANSWERS", {})
    monkeypatch.setattr(
        tool, "answer", lambda there, top: asked.append(there) or type("A", (), {"entries": ()})
    )
    for row in rows:
        tool.judge(row)
    # more GPUs, then fewer, where no plan is found; each number once for both
    sizes = [there.cluster.num_gpus for there in asked]
    assert len(rows) == 2 and len(sizes) == len(set(sizes)) and sizes[:2] == [1, 2]


def test_a_published_run_is_the_fastest_of_its_layout(tool):
    rows = rows_of(SHARED)
    runs = tool.read_runs(SHARED, {tool.run_of(row) for row in rows})
    by_name = {row["recipe"]: runs.get(tool.run_of(row)) for row in rows}
    # 512 sequences of 8192 tokens on 64 GPUs: 7,296 and 7,009 tokens/s per GPU
    found = by_name["nemotron_3_super_pretrain_64gpu_b300_fp8mx_config"]
    assert found == pytest.approx(8.982, abs=0.001)
    assert by_name["qwen3_next_80b_a3b_pretrain_64gpu_b300_bf16_config"] is None
    assert sum(seconds is not None for seconds in by_name.values()) >= 40


def test_every_part_of_a_step_has_a_name_and_a_reason(tool):
    for part in PARTS:
        for lang in LANGUAGES:
            assert has(f"docs.recipes.part.{part.removesuffix('_s')}", lang)
            assert has(f"docs.recipes.{part.removesuffix('_s')}", lang)
