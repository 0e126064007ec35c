"""What an emitter gets and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Literal

from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import Framework, Plan

__all__ = ["EmittedFile", "Flag", "Obstacle", "Order", "Program", "Target", "once"]

Flag = tuple[str, ...]
"""One option with its values, such as ``("--num-layers", "80")``."""


@record
class Order:
    """A plan to be written down.

    Attributes:
        scenario: model, cluster and job.
        plan: the plan, legal in its framework.
        notes: lines for the top of each file, in the reader's language: which plan this is, what
            was predicted with which band, and how to measure it.
        trial_notes: lines above the options of a short run, likewise.
        node_notes: lines above the start of the tasks of Slurm, likewise.
    """

    scenario: Scenario
    plan: Plan
    notes: tuple[str, ...] = ()
    trial_notes: tuple[str, ...] = ()
    node_notes: tuple[str, ...] = ()


@record
class EmittedFile:
    """One file of a launch config; ``name`` is relative, without folders above it."""

    name: str
    text: str
    executable: bool = False


@record
class Obstacle:
    """Something of the plan or the model that a target cannot express.

    Attributes:
        code: key of the sentences ``error.emit_<code>`` and ``hint.emit_<code>``.
        numbers: values that the sentence mentions.
        model: it lies in the model or the job, so that no other plan avoids it.
    """

    code: str
    numbers: Mapping[str, object] = field(default_factory=dict)
    model: bool = False


def once(obstacles: Iterable[Obstacle]) -> tuple[Obstacle, ...]:
    """Each obstacle once, in order of first appearance."""
    seen: dict[str, Obstacle] = {}
    for obstacle in obstacles:
        seen.setdefault(f"{obstacle.code}{sorted(obstacle.numbers.items())}", obstacle)
    return tuple(seen.values())


@record
class Program:
    """What runs on the GPUs, without the launcher around it.

    Attributes:
        start: ``torchrun`` starts one process per GPU, ``accelerate`` does so with a config
            file, ``node`` is one process per node that finds its GPUs itself.
        words: the program as words of a shell, already quoted.
        groups: options by the name of the shell array that holds them.
        environment: variables that the framework looks for.
        trial: options of a short run for readers who pass none of their own; empty where the
            program needs theirs.
        files: further files; ``$HERE`` is their folder in ``words``.
        config: name of the file that ``accelerate launch`` reads; empty for the others.
    """

    start: Literal["torchrun", "accelerate", "node"]
    words: tuple[str, ...]
    groups: Mapping[str, list[Flag]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    trial: tuple[Flag, ...] = ()
    files: tuple[EmittedFile, ...] = ()
    config: str = ""


@record
class Target:
    """A framework's config format.

    Attributes:
        name: what ``--to`` takes.
        framework: whose rules apply to the plan.
        version: version that the output was written for.
        verified: the framework's own validator reads the output in our tests.
        obstacles: what stands in the way; empty when the target can express the plan.
        program: the config; called only without obstacles.
        unwritten: names of what times count on and the config does not say.
        stacks: variants whose behaviour the config writes.
    """

    name: str
    framework: Framework
    version: str
    verified: bool
    obstacles: Callable[[Order], tuple[Obstacle, ...]]
    program: Callable[[Order], Program]
    unwritten: Callable[[Order], tuple[str, ...]] = lambda order: ()
    stacks: tuple[str, ...] = ()
