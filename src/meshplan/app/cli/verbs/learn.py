"""``meshplan learn``: the guide."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import busy, deliver

__all__ = ["run"]


@o.spread
def run(
    ctx: typer.Context,
    chapter: Annotated[
        str | None, typer.Argument(metavar="CHAPTER", help="cli.argument.chapter")
    ] = None,
    *,
    quiz: Annotated[bool, typer.Option("--quiz", help="cli.option.quiz")] = False,
    answers: Annotated[bool, typer.Option("--answers", help="cli.option.answers")] = False,
    delivery: o.Delivery,
) -> int:
    """List the chapters, or show one."""
    session = ctx.find_object(Session)
    assert session
    from meshplan.app import service
    from meshplan.app.cli.render.learn import render_learn

    with busy("cli.busy.learn", session.lang):
        result = service.learn({"lang": session.lang, "chapter": chapter, "quiz": quiz})
    deliver(
        {**result, "answers": answers},
        render_learn,
        lang=session.lang,
        delivery=delivery,
        paged=bool(chapter) and sys.stdout.isatty(),
    )
    return 0
