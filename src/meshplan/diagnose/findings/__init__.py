"""What costs time, and what to change: one module per kind of cause."""

from meshplan.diagnose.findings.diagnose import KINDS, diagnose
from meshplan.diagnose.findings.records import (
    Action,
    Change,
    Check,
    Context,
    Diagnosis,
    Finding,
    Gain,
    Place,
)

__all__ = [
    "KINDS",
    "Action",
    "Change",
    "Check",
    "Context",
    "Diagnosis",
    "Finding",
    "Gain",
    "Place",
    "diagnose",
]
