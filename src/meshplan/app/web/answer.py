"""One request to one answer: the text of a result, problems, or a fault without its trace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshplan.app import service
from meshplan.app.encode import to_json
from meshplan.app.web.scene import scene
from meshplan.app.web.settings import settings
from meshplan.errors import Problem, UserError

if TYPE_CHECKING:
    from meshplan.diagnose.reading import Reading

__all__ = ["QUICK", "VERBS", "answer", "problems_json"]

Json = dict[str, Any]
Tell = Callable[[Json], None]

VERBS: Mapping[str, Callable[[Any], Json]] = {
    "plan": service.plan,
    "estimate": service.estimate,
    "glance": partial(service.estimate, with_remedies=False),
    "compare": service.compare,
    "explain": service.explain,
    "emit": service.emit,
    "inspect": service.inspect,
    "list": service.list_things,
    "scene": scene,
    "settings": settings,
}
"""What can be asked; each is the function that the command line calls too. A glance is an estimate
that does not look for ways out, which would take a search."""

QUICK = frozenset({"glance", "compare", "inspect", "list", "scene", "settings"})
"""What never searches, and is answered at once."""


def problems_json(error: UserError) -> list[Json]:
    """The problems of an error as codes and values; the page asks for their sentences."""
    return [_problem(problem) for problem in error.problems]


def _problem(problem: Problem) -> Json:
    return {
        "code": problem.code,
        "where": problem.where,
        "value": None if problem.value is None else str(problem.value)[:200],
        "allowed": [str(value) for value in problem.allowed][:40],
        "numbers": {key: _plain(value) for key, value in problem.numbers.items()},
    }


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | str | bool) else str(value)


def answer(verb: str, request: Any, *, tell: Tell | None = None) -> Json:
    """Answer a request that was checked before.

    Args:
        verb: what is asked.
        request: with what.
        tell: told ``share`` and ``part`` before it is done, see :mod:`meshplan.app.web.worker`.

    Returns:
        ``result`` (the text that ``--json`` prints), ``problems`` or ``fault``.
    """
    try:
        if tell is not None and verb in _TOLD:
            return {"result": _TOLD[verb](request, tell)}
        return {"result": to_json(VERBS[verb](request))}
    except UserError as error:
        return {"problems": problems_json(error)}
    except Exception as error:  # the edge: the page gets the kind, the log of the server the rest
        logging.getLogger("meshplan").exception("fault while answering %s", verb)
        return {"fault": type(error).__name__}


def _plan(request: Any, tell: Tell) -> str:
    """Search, and tell what is known as soon as it is."""
    known: Json = {}
    for known in service.plan_steps(request, progress=lambda share: tell({"share": share})):
        tell({"part": to_json(known, compact=True)})
    return to_json(known)


def _diagnose(request: Any, tell: Tell) -> str:
    """Read files that were uploaded, tell how far, and name them as the person does."""

    def progress(reading: Reading) -> None:
        # the size of what is packed is not known before it is read: its file counts when done
        packed = reading.file.endswith(".gz")
        inside = 0.0 if packed else min(1.0, reading.num_bytes / max(1, reading.file_bytes))
        tell({"share": (reading.number - 1 + inside) / reading.num_files})

    result = service.diagnose({**request, "timeline": True}, progress=progress)
    result["paths"] = [Path(path).name for path in result.get("paths", ())]
    return to_json(result)


_TOLD: Mapping[str, Callable[[Any, Tell], str]] = {"plan": _plan, "diagnose": _diagnose}
"""What says how far it is while it works."""
