"""What an emitter gets and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import Framework, Plan

__all__ = ["EmittedFile", "Obstacle", "Order", "Target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A plan to be written down.

    Attributes:
        scenario: model, cluster and job.
        plan: the plan.
        notes: lines for the top of each file, in the reader's language: which plan this is, what
            was predicted with which band, and how to measure it.
    """

    scenario: Scenario
    plan: Plan
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedFile:
    """One file of a launch config; ``name`` is relative, without folders above it."""

    name: str
    text: str
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Something of the plan or the model that a target cannot express.

    Attributes:
        code: key of the sentence ``emit.<code>``.
        numbers: values that the sentence mentions.
    """

    code: str
    numbers: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A framework's config format.

    Attributes:
        name: what ``--to`` takes.
        framework: whose rules apply to the plan.
        version: version that the output was written for.
        verified: the framework's own validator reads the output in our tests.
        obstacles: what stands in the way; empty when the target can express the plan.
        files: the config; called only without obstacles.
        command: the command of one process, without its launcher.
    """

    name: str
    framework: Framework
    version: str
    verified: bool
    obstacles: Callable[[Order], tuple[Obstacle, ...]]
    files: Callable[[Order], tuple[EmittedFile, ...]]
    command: Callable[[Order], tuple[str, ...]]
