"""A scene as SVG, at its end or at a moment: for files that need no script."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from meshplan.app.web.wrap import SIZES
from meshplan.explanation.scenes.records import WIDE

__all__ = ["PALETTE", "svg_of"]

Mark = Mapping[str, Any]

PALETTE = {
    **{
        f"t{i}": c
        for i, c in enumerate(
            ("#3b6fd4", "#e0803a", "#2f9c83", "#9661c9", "#c7a12a", "#d1577f", "#4aa3c7", "#7d8a3a")
        )
    },
    "accent": "#6c7fa8",
    "muted": "#9aa3af",
    "track": "#8b95a522",
    "t9": "#8b95a522",
    "glow": "#3b6fd41c",
    "frame": "none",
    "good": "#2f9c83",
    "warn": "#c7a12a",
    "bad": "#d0453e",
}
_LINE = "#8b95a588"
_LINE_HEIGHT = 1.35


def svg_of(scene: Mapping[str, Any], *, at_s: float | None = None) -> str:
    """Draw a scene that has its words.

    Args:
        scene: what :func:`~meshplan.app.web.scene.words_on` gives.
        at_s: moment [s]; the end by default.
    """
    moment = scene["duration_s"] - 1e-6 if at_s is None else at_s
    drawn = [_drawn(mark, moment) for mark in scene.get("marks", ())]
    caption = escape(scene["caption"]["field"])
    paper = scene.get("paper") or {"width": WIDE.width, "height": WIDE.height}
    extent = f"0 0 {paper['width']:g} {paper['height']:g}"
    head = f'viewBox="{extent}" role="img" font-family="sans-serif"'
    body = "".join(drawn) + _cells(scene.get("cells"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {head} fill="currentColor">'
        f"<title>{caption}</title>{body}</svg>"
    )


def _drawn(mark: Mark, moment: float) -> str:
    span = mark.get("span")
    if span and not span[0] <= moment < (1e9 if mark["kind"] == "grow" else span[1]):
        return ""
    x, y, w, h = (mark.get(name, 0.0) for name in "xywh")
    colour = PALETTE.get(mark.get("tone", "muted"), "currentColor")
    match mark["kind"]:
        case "box" | "grow":
            if span and mark["kind"] == "grow":
                w *= min((moment - span[0]) / (span[1] - span[0]), 1.0)
            edge = f' stroke="{_LINE}"' if colour == "none" else ""
            shape = f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="3"'
            label = mark.get("label")
            size = min(13.0, max(h * 0.7, 6.0))
            said = (
                f'<text x="{x + w / 2:g}" y="{y + h / 2 + size * 0.35:g}" font-size="{size:g}" '
                f'text-anchor="middle"{_on(colour)}>{escape(label)}</text>'
                if label
                else ""
            )
            tip = f"<title>{escape(mark['title'])}</title>" if mark.get("title") else ""
            return f'{shape} fill="{colour}"{edge}>{tip}</rect>{said}'
        case "text":
            tone = mark.get("tone", "ink")
            size = SIZES.get(tone, 14.0)
            weight = ' font-weight="600"' if tone in ("strong", "huge") else ""
            soft = ' opacity="0.7"' if tone == "soft" else ""
            anchor = mark.get("anchor", "start")
            return "".join(
                f'<text x="{x:g}" y="{y + k * size * _LINE_HEIGHT:g}" font-size="{size:g}" '
                f'text-anchor="{anchor}"{weight}{soft}>{escape(line)}</text>'
                for k, line in enumerate(mark["label"].split("\n"))
            )
        case "line":
            edge = _LINE if colour == "none" else colour
            return (
                f'<line x1="{x:g}" y1="{y:g}" x2="{x + w:g}" y2="{y + h:g}" '
                f'stroke="{edge}" stroke-width="2"/>'
            )
        case "curve":
            points = " ".join(f"{px:.2f},{py:.2f}" for px, py in mark["points"])
            return (
                f'<polyline points="{points}" fill="none" stroke="{colour}" '
                f'stroke-width="{w:g}" stroke-linejoin="round"/>'
            )
    if not span:
        return ""
    share = (moment - span[0]) / (span[1] - span[0])
    return f'<circle cx="{x + w * share:g}" cy="{y + h * share:g}" r="6" fill="{colour}"/>'


def _on(colour: str) -> str:
    return "" if colour == "none" or len(colour) > 7 else ' fill="#fff"'


def _cells(cells: Mapping[str, Any] | None) -> str:
    if not cells:
        return ""
    size = cells["size"]
    return "".join(
        f'<rect x="{x:g}" y="{y:g}" width="{size:g}" height="{size:g}" rx="{size * 0.15:g}" '
        f'fill="{PALETTE[f"t{tone}"]}"/>'
        for x, y, tone in zip(cells["x"], cells["y"], cells["tone"], strict=True)
    )
