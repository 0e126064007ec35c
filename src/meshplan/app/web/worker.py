"""A process that answers one request after another: ``python -m meshplan.app.web.worker``.

Requests come in as one line of JSON each, ``{"verb": ..., "request": ...}``, and answers go out
as one line: ``{"result": text}``, ``{"problems": [...]}`` or ``{"fault": kind}``. Lines before it
say how far the answer is: ``{"share": done}`` from 0 to 1, and ``{"part": text}``, the result as
far as it is known.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from meshplan.app.web.answer import answer

__all__ = ["main"]

_OBJECTS_PER_COLLECTION = 100_000


def main() -> None:
    """Answer until the other side closes."""
    # what an answer is made of is dropped as a whole: few cycles are worth looking for
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    # whatever prints by accident must not end up among the answers
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(said: Mapping[str, Any]) -> None:
        print(json.dumps(said), file=out, flush=True)

    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        say(answer(asked["verb"], asked["request"], tell=say))


if __name__ == "__main__":
    main()
