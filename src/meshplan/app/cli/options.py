"""The options that verbs share. Help texts are codes of sentences, panels too.

Values stay text here: the service reads them, so that all that is wrong is said at once and in
the same words as for a scenario file.
"""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "Cluster",
    "Cp",
    "Ep",
    "Etp",
    "Framework",
    "GlobalBatch",
    "Json",
    "MicroBatch",
    "Model",
    "Objective",
    "Output",
    "Pp",
    "Profile",
    "Recompute",
    "SaveScenario",
    "Schedule",
    "SeqLen",
    "Set",
    "Tp",
    "Vpp",
    "Zero",
]

_JOB = "cli.panel.job"
_PLAN = "cli.panel.degrees"
_OUT = "cli.panel.output"

Model = Annotated[str, typer.Argument(metavar="MODEL", help="cli.argument.model")]

Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="cli.option.cluster", rich_help_panel=_JOB),
]
SeqLen = Annotated[
    str | None,
    typer.Option("--seq-len", metavar="N", help="cli.option.seq_len", rich_help_panel=_JOB),
]
GlobalBatch = Annotated[
    str | None,
    typer.Option(
        "--global-batch", metavar="N", help="cli.option.global_batch", rich_help_panel=_JOB
    ),
]
Objective = Annotated[
    str | None,
    typer.Option("--objective", metavar="NAME", help="cli.option.objective", rich_help_panel=_JOB),
]
Profile = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="cli.option.profile", rich_help_panel=_JOB),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="cli.option.set", rich_help_panel=_JOB),
]

Tp = Annotated[
    str | None, typer.Option("--tp", metavar="N", help="cli.option.tp", rich_help_panel=_PLAN)
]
Pp = Annotated[
    str | None, typer.Option("--pp", metavar="N", help="cli.option.pp", rich_help_panel=_PLAN)
]
Vpp = Annotated[
    str | None, typer.Option("--vpp", metavar="N", help="cli.option.vpp", rich_help_panel=_PLAN)
]
Cp = Annotated[
    str | None, typer.Option("--cp", metavar="N", help="cli.option.cp", rich_help_panel=_PLAN)
]
Ep = Annotated[
    str | None, typer.Option("--ep", metavar="N", help="cli.option.ep", rich_help_panel=_PLAN)
]
Etp = Annotated[
    str | None, typer.Option("--etp", metavar="N", help="cli.option.etp", rich_help_panel=_PLAN)
]
MicroBatch = Annotated[
    str | None,
    typer.Option(
        "--micro-batch", metavar="N", help="cli.option.micro_batch", rich_help_panel=_PLAN
    ),
]
Zero = Annotated[
    str | None, typer.Option("--zero", metavar="N", help="cli.option.zero", rich_help_panel=_PLAN)
]
Recompute = Annotated[
    str | None,
    typer.Option("--recompute", metavar="MODE", help="cli.option.recompute", rich_help_panel=_PLAN),
]
Schedule = Annotated[
    str | None,
    typer.Option("--schedule", metavar="NAME", help="cli.option.schedule", rich_help_panel=_PLAN),
]
Framework = Annotated[
    str | None,
    typer.Option("--framework", metavar="NAME", help="cli.option.framework", rich_help_panel=_PLAN),
]

Json = Annotated[bool, typer.Option("--json", help="cli.option.json", rich_help_panel=_OUT)]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="cli.option.output", rich_help_panel=_OUT),
]
SaveScenario = Annotated[
    str | None,
    typer.Option(
        "--save-scenario", metavar="FILE", help="cli.option.save_scenario", rich_help_panel=_OUT
    ),
]
