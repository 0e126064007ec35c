"""``meshplan emit``: launch configs of a plan."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import busy, deliver, deliver_json, write_files
from meshplan.app.cli.request import build_request, pins_of
from meshplan.errors import UserError
from meshplan.text import t

__all__ = ["run"]


@o.spread
def run(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="cli.argument.emit_source")],
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help="cli.option.to")],
    *,
    folder: Annotated[
        str | None, typer.Option("--output", "-o", metavar="DIR", help="cli.option.folder")
    ] = None,
    launcher: Annotated[
        str | None, typer.Option("--launcher", metavar="NAME", help="cli.option.launcher")
    ] = None,
    rank: Annotated[str | None, typer.Option("--rank", metavar="N", help="cli.option.rank")] = None,
    job: o.Job,
    settings: o.Set = None,
    degrees: o.Degrees,
    framework: o.Framework = None,
    as_json: o.Json = False,
) -> int:
    """Write the files, or show them when no folder is named."""
    session = ctx.find_object(Session)
    assert session
    request = _result_request(source, rank)
    if request is None:
        request = build_request(
            source, job, settings=settings, frameworks=framework, axes=pins_of(degrees)
        )
    else:
        given = {**asdict(job), **degrees.given(), "framework": framework, "set": settings}
        _refuse_overrides(source, [n for n, v in given.items() if v not in (None, [])])
    request |= {"to": to, "launcher": launcher, "lang": session.lang}
    from meshplan.app import service
    from meshplan.app.cli.render.emission import render_emit

    with busy("cli.busy.plan", session.lang):
        result = service.emit(request)
    if folder is not None:
        write_files(folder, result["files"], lang=session.lang)
    if as_json:
        deliver_json(result, lang=session.lang, output=None)
    elif folder is None:
        deliver(result, render_emit, lang=session.lang)
    # the files are there all the same: someone may know better
    too_large = result["plans"][0]["memory"]["verdict"] == "oom"
    if too_large and folder is not None:
        print(t("emit.head.oom", session.lang), file=sys.stderr)
    if too_large:
        print(t("emit.way_out", session.lang), file=sys.stderr)
    return int(too_large)


def _result_request(source: str, rank: str | None) -> dict[str, Any] | None:
    """The request for a file that ``plan --json`` wrote; None for any other source."""
    from meshplan.app.emission import read_result
    from meshplan.inputs.load.opening import is_nameless

    if not (source.endswith(".json") or is_nameless(source)):
        return None

    result = read_result(source)
    return None if result is None else {"result": result, "rank": rank}


def _refuse_overrides(source: str, names: Sequence[str]) -> None:
    """Refuse options that a plan file holds already: they would change nothing in it.

    Raises:
        UserError: ``emit_plan_is_made``, which names them all.
    """
    if names:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        raise UserError.of("emit_plan_is_made", where=source, value=options)
