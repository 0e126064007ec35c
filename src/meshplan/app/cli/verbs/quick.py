"""``meshplan quick``: the rule of thumb beside the full model's answer."""

from __future__ import annotations

from typing import Annotated

import typer

from meshplan.app.cli import options as o
from meshplan.app.cli.commands import Session
from meshplan.app.cli.output import busy, deliver

__all__ = ["run"]


@o.spread
def run(
    ctx: typer.Context,
    num_params: Annotated[str, typer.Argument(metavar="BILLIONS", help="cli.argument.num_params")],
    *,
    gpus: Annotated[str | None, typer.Option("--gpus", metavar="N", help="cli.option.gpus")] = None,
    gpu_memory: Annotated[
        str | None, typer.Option("--gpu-memory", metavar="GB", help="cli.option.gpu_memory")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="cli.option.device")
    ] = None,
    delivery: o.Delivery,
) -> int:
    """Answer by rule and by model; 1 when the full model finds nothing that fits."""
    session = ctx.find_object(Session)
    assert session
    from meshplan.app import service
    from meshplan.app.cli.render.quick import render_quick

    request = {
        "num_params_b": num_params.lower().removesuffix("b"),
        "num_gpus": gpus,
        "gpu_memory_gb": gpu_memory,
        "device": device,
    }
    with busy("cli.busy.quick", session.lang):
        result = service.quick(request)
    deliver(result, render_quick, lang=session.lang, delivery=delivery)
    return 0 if result["plans"] else 1
