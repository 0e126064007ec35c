"""How cases go to a validator and verdicts come back: one JSON object per line."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["serve"]


def serve(check: Callable[[Mapping[str, Any]], None]) -> None:
    """Read cases from standard input and print the verdict on each.

    Args:
        check: raises when the framework refuses a case.
    """
    warnings.filterwarnings("ignore")
    out = sys.stdout
    for line in sys.stdin:
        case = json.loads(line)
        said = io.StringIO()
        verdict: dict[str, Any] = {"id": case["id"], "ok": True, "why": ""}
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                check(case)
        except SystemExit:
            last = said.getvalue().strip().splitlines() or [""]
            verdict |= {"ok": False, "why": f"exit: {last[-1][:200]}"}
        except Exception as error:
            text = str(error).strip().split("\n")[0][:200]
            verdict |= {"ok": False, "why": f"{type(error).__name__}: {text}"}
        print(json.dumps(verdict), file=out, flush=True)
