"""The tables of the page about accuracy: their headers in both languages, and how they are set."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]


def percent(value: float | None) -> str:
    """Print a fraction."""
    return "-" if value is None or not np.isfinite(value) else f"{100 * value:.1f} %"


def sweep_name(key: tuple[str, ...]) -> str:
    """A sweep as it is printed, without its source: its name, and what else tells it apart."""
    return " ".join(part for part in (key[1], *key[3:]) if part).replace("|", ", ")


def table(header: list[str], rows: list[list[str]]) -> str:
    """Lay out a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join("---" for _ in header) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


_CALIBRATED_EN = [
    "source",
    "the three runs",
    "sweeps",
    "mean before",
    "mean after",
    "median before",
    "median after",
    "better / worse",
    "sweeps better / same / worse in the mean",
    "the sweep that loses most",
    "inside the band",
    "half width",
]
_CALIBRATED_ZH = [
    "来源",
    "三条记录",
    "扫描组",
    "校准前平均",
    "校准后平均",
    "校准前中位数",
    "校准后中位数",
    "变好 / 变差",
    "平均变好 / 不变 / 变差的扫描组",
    "变差最多的扫描组",
    "落入误差带",
    "半宽",
]
HEADERS = {
    "en": {
        "reached": [
            "set",
            "statistic",
            "target",
            "rows",
            "all",
            "fit side",
            "judge side",
            "repeats leave",
            "reached",
        ],
        "left_out": [
            "source",
            "rows",
            "mean error",
            "median error",
            "bias",
            "inside the band",
            "sweeps",
            "mean regret",
        ],
        "ranking": [
            "source",
            "sweeps",
            "mean regret",
            "median regret",
            "repeats leave",
            "rank correlation",
        ],
        "picks": [
            "sweep",
            "layouts",
            "regret",
            "repeats leave",
            "pick: measured (predicted)",
            "fastest",
        ],
        "bands": [
            "profile",
            "rows",
            "median half width",
            "inside, fit side",
            "inside, judge side",
            "inside, all",
        ],
        "calibrated": _CALIBRATED_EN,
        "calibrated_known": _CALIBRATED_EN,
        "calibrated_sweeps": [
            "source",
            "sweep",
            "without a profile: mean error before",
            "after three runs",
            "best one factor in hindsight",
            "with its profile: before",
            "after three runs",
        ],
        "worst": ["group", "rows", "median error", "bias", "largest parts of the prediction"],
    },
    "zh": {
        "reached": [
            "数据集",
            "统计量",
            "目标",
            "行数",
            "全部",
            "拟合侧",
            "评判侧",
            "重复之差",
            "达标",
        ],
        "left_out": [
            "来源",
            "行数",
            "平均误差",
            "误差中位数",
            "偏差",
            "落入误差带",
            "扫描组",
            "平均遗憾",
        ],
        "ranking": ["来源", "扫描组", "平均遗憾", "遗憾中位数", "重复之差", "秩相关"],
        "picks": [
            "扫描组",
            "布局数",
            "遗憾",
            "重复之差",
            "所选：实测（预测）",
            "最快",
        ],
        "bands": ["档案", "行数", "半宽中位数", "落入（拟合侧）", "落入（评判侧）", "落入（全部）"],
        "calibrated": _CALIBRATED_ZH,
        "calibrated_known": _CALIBRATED_ZH,
        "calibrated_sweeps": [
            "来源",
            "扫描组",
            "没有档案：校准前平均误差",
            "给三条记录后",
            "事后最佳的单一系数",
            "有自己的档案：校准前",
            "给三条记录后",
        ],
        "worst": ["组", "行数", "误差中位数", "偏差", "预测中占比最大的部分"],
    },
}
WORDS = {
    "mean": "平均",
    "median": "中位数",
    "yes": "是",
    "no": "否",
    "all strict sweeps": "全部严格扫描组",
    "all but hf-ultrascale": "除 hf-ultrascale 外",
    "all": "全部",
    "first, middle, last": "首、中、尾",
    "drawn": "随机抽取",
}


def write(tables: dict[str, list[list[str]]], facts: dict[str, str]) -> None:
    """Put the tables and counts between their marks in the pages."""
    for lang, headers in HEADERS.items():
        path = ROOT / "docs" / lang / "accuracy.md"
        text = path.read_text("utf-8")
        for name, rows in tables.items():
            shown = [
                [WORDS.get(cell, cell) if lang == "zh" else cell for cell in row] for row in rows
            ]
            block = f"<!-- table: {name} -->\n{table(headers[name], shown)}\n<!-- end -->"
            text, n = re.subn(
                rf"<!-- table: {name} -->\n.*?<!-- end -->", lambda _, b=block: b, text, flags=re.S
            )
            assert n == 1, (lang, name)
        for name, value in facts.items():
            text, n = re.subn(
                rf"<!-- {name} -->.*?<!-- / -->", f"<!-- {name} -->{value}<!-- / -->", text
            )
            assert n >= 1, (lang, name)
        path.write_text(text, "utf-8")
