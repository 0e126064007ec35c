"""Moving pictures of a plan as data: seven mechanisms in four modes."""

from meshplan.explanation.scenes.build import MECHANISMS, MODES, build_scene
from meshplan.explanation.scenes.records import (
    ALGORITHMS,
    NARROW,
    WIDE,
    Cells,
    Label,
    Mark,
    Paper,
    Scene,
    WhatIf,
)

__all__ = [
    "ALGORITHMS",
    "MECHANISMS",
    "MODES",
    "NARROW",
    "WIDE",
    "Cells",
    "Label",
    "Mark",
    "Paper",
    "Scene",
    "WhatIf",
    "build_scene",
]
