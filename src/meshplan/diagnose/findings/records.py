"""What is found: causes with their evidence, cost, next action, expected gain and certainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from meshplan.diagnose.findings.thresholds import threshold
from meshplan.inputs.cluster import Cluster
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import Framework, Plan

__all__ = [
    "Action",
    "Change",
    "Check",
    "Confidence",
    "Context",
    "Diagnosis",
    "Finding",
    "Gain",
    "Place",
    "Value",
]

Value: TypeAlias = float | int | str
Confidence: TypeAlias = Literal["high", "medium", "low"]


@record
class Context:
    """What is known of a run besides its measures; all of it optional.

    Attributes:
        scenario: model, cluster and job.
        plan: the plan that ran.
        cluster: the cluster, where it is known without a model.
        framework: whose options the actions are spelled in.
    """

    scenario: Scenario | None = None
    plan: Plan | None = None
    cluster: Cluster | None = None
    framework: Framework | None = None


@record
class Place:
    """Where in the timeline something can be seen.

    Attributes:
        rank: on which rank.
        start_us: start, on the clock of that rank [us].
        end_us: end [us].
    """

    rank: int
    start_us: float
    end_us: float


@record
class Change:
    """One setting to change.

    Attributes:
        field: what changes, by our name.
        option: the framework's own option; empty when the framework is not known.
        before: its value now; empty when not known, None when it is not set.
        after: its value then, empty for a flag that takes none; ``+`` for more of it, ``?`` when
            no value can be named, None when it is to be taken out.
    """

    field: str
    option: str
    before: Value | None
    after: Value | None


@record
class Action:
    """The next thing to do.

    Attributes:
        code: ``diagnose.action.<code>`` is its sentence.
        numbers: values that the sentence mentions.
        changes: settings to change; empty where the cure is not a setting.
        plan: the plan to run instead, whose settings say what to change; None where no plan is
            known or the cure lies outside of it.
    """

    code: str
    numbers: Mapping[str, Value] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    plan: Plan | None = None


@record
class Gain:
    """What the action is expected to save.

    Attributes:
        share: share of the step [1].
        basis: ``cost_model`` (the changed plan was estimated anew), ``trace`` (what the finding
            costs, which is the most that its cure can bring) or ``figure`` (nothing: a figure
            changes and the step does not).
    """

    share: float
    basis: Literal["cost_model", "trace", "figure"]


@record
class Finding:
    """One cause of lost time.

    Attributes:
        code: ``diagnose.finding.<code>`` is its sentence, with ``.<form>`` where it has one.
        form: which of several sentences it is.
        details: what else the evidence shows; ``diagnose.detail.<code>`` are the sentences.
        cost_share: share of the step that it costs [1], 0 where a figure is wrong and no time is
            lost; None where what was given does not tell.
        numbers: the evidence as values that the sentence mentions.
        ranks: the ranks that show it; empty for all.
        kernels: the kernels that show it.
        places: where in the timeline.
        action: what to do next.
        gain: what that should bring; None where the cost is not known.
        confidence: how sure it is.
        reason: ``diagnose.reason.<reason>`` says why that sure.
        cost_reason: why no cost is known; ``diagnose.no_cost.<reason>`` is its sentence.
        cost_s: what it costs in a step [s]; None where no step was timed.
    """

    code: str
    cost_share: float | None
    numbers: Mapping[str, Value]
    ranks: tuple[int, ...] = ()
    kernels: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    action: Action
    gain: Gain | None
    confidence: Confidence
    reason: str
    cost_reason: str = ""
    cost_s: float | None = None
    form: str = ""
    details: tuple[str, ...] = ()

    @property
    def severity(self) -> Literal["large", "medium", "small"]:
        """How much of the step it costs, in words."""
        share = self.cost_share or 0.0
        if share >= threshold("large_share"):
            return "large"
        return "medium" if share >= threshold("medium_share") else "small"


@record
class Check:
    """One cause that was looked for.

    Attributes:
        code: ``diagnose.check.<code>`` names it.
        state: ``found``, ``clear`` (looked for and not there), ``open`` when what was given does
            not tell, or ``absent`` when the run has nothing of the kind.
        reason: why it stays open; ``diagnose.open.<reason>`` is its sentence. Empty otherwise.
    """

    code: str
    state: Literal["found", "clear", "open", "absent"]
    reason: str = ""


@record
class Diagnosis:
    """All that was found, the costliest first, and all that was looked for."""

    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
