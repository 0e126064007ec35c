"""The options that verbs share. Help texts are codes of sentences, panels too.

Values stay text here: the service reads them, so that all that is wrong is said at once and in
the same words as for a scenario file. Options that go together stand in one record; a verb that
takes such a record is spread over its fields by :func:`spread`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from meshplan.record import record

__all__ = [
    "Cluster",
    "Cp",
    "Degrees",
    "Delivery",
    "Ep",
    "Etp",
    "Framework",
    "GlobalBatch",
    "Job",
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
    "spread",
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


@record
class Job:
    """What is trained, and where."""

    cluster: Cluster = None
    seq_len: SeqLen = None
    global_batch: GlobalBatch = None


@record
class Degrees:
    """The fields of a plan that have an option."""

    tp: Tp = None
    pp: Pp = None
    vpp: Vpp = None
    cp: Cp = None
    ep: Ep = None
    etp: Etp = None
    micro_batch: MicroBatch = None
    zero: Zero = None
    recompute: Recompute = None
    schedule: Schedule = None

    def given(self) -> dict[str, str]:
        """The fields that were given."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@record
class Delivery:
    """Where the answer goes, and in which form."""

    as_json: Json = False
    output: Output = None


def spread(verb: Callable[..., int]) -> Callable[..., int]:
    """Let a verb take records of options: typer sees their fields, the verb gets the records."""
    hints = get_type_hints(verb, include_extras=True)
    records: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(verb).parameters.items():
        if name not in records:
            parameters.append(
                parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            )
            continue
        kinds = get_type_hints(records[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=kinds[field.name],
            )
            for field in fields(records[name])
        ]

    @functools.wraps(verb)
    def call(**values: Any) -> int:
        for name, kind in records.items():
            values[name] = kind(**{f.name: values.pop(f.name) for f in fields(kind)})
        return verb(**values)

    del call.__wrapped__  # or its own parameters would be seen
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call
