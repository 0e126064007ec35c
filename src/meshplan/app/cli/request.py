"""Options to a request: the plain mapping that the service reads.

Values are not checked here. Text stays text, so that the service says all that is wrong at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshplan.app.cli.options import Degrees, Job
from meshplan.errors import UserError
from meshplan.inputs.load.opening import STDIN, is_nameless, read_bytes

__all__ = ["build_request", "given_plan", "pins_of", "plan_fields"]

Request = dict[str, Any]

_STDIN_FILE = "/dev/stdin"
_SCENARIO_FILES = (".yaml", ".yml")
# what a verb adds to the scenario itself; from a person they would be dropped in silence
_OUR_KEYS = {"plan", "plans"}


def build_request(
    model: str,
    job: Job,
    *,
    objective: str | None = None,
    profile: str | None = None,
    settings: Sequence[str] | None = None,
    frameworks: str | None = None,
    axes: Mapping[str, list[str]] | None = None,
) -> Request:
    """Make the request that the shared options describe.

    A scenario file given as the model is the base; options override it, and ``--set`` comes last.
    """
    from meshplan.inputs.load.scenario import SCENARIO_FIELDS, apply_settings, read_scenario_file
    from meshplan.inputs.vocabulary import unknown

    model = _STDIN_FILE if model == STDIN else model
    request: Request = {"model": model}
    if _is_scenario(model):
        request = dict(read_scenario_file(model))
    given = {
        "cluster": job.cluster,
        "objective": objective,
        "profile": profile,
        "frameworks": frameworks and frameworks.split(","),
    }
    request.update({key: value for key, value in given.items() if value is not None})
    stated_job = {"seq_len": job.seq_len, "global_batch": job.global_batch}
    for section, values in (("job", stated_job), ("axes", axes or {})):
        stated = {key: value for key, value in values.items() if value is not None}
        if stated:
            request[section] = {**(request.get(section) or {}), **stated}
    request = dict(apply_settings(request, settings or ()))
    for key in sorted(_OUR_KEYS & request.keys()):
        names = [field.name for field in SCENARIO_FIELDS]
        raise unknown("unknown_key", where=key, value=key, names=names)
    return request


def _is_scenario(source: str) -> bool:
    """Whether a source is a scenario, by its name, or by its text where it has none."""
    from meshplan.inputs.load.hf_json import MAX_CONFIG_BYTES

    if source.endswith(_SCENARIO_FILES):
        return True
    if not is_nameless(source):
        return False
    try:
        text = read_bytes(source, most_bytes=MAX_CONFIG_BYTES).lstrip(b"\xef\xbb\xbf \t\r\n")
    except OSError:
        return False  # whoever reads it says what is wrong
    return bool(text) and not text.startswith((b"{", b"["))


def pins_of(degrees: Degrees) -> dict[str, list[str]]:
    """Read lists such as ``1,2,4`` as the values that an axis is restricted to."""
    return {
        axis: [value.strip() for value in text.split(",")] for axis, text in degrees.given().items()
    }


def given_plan(request: Request, degrees: Degrees) -> dict[str, Any]:
    """Gather the one plan to judge: what the scenario pins, then what the options say.

    An axis that the scenario leaves open between several values is no part of one plan.

    Raises:
        UserError: for an option with several values.
    """
    plan: dict[str, Any] = {}
    for axis, values in (request.get("axes") or {}).items():
        listed = values if isinstance(values, list | tuple) else [values]
        if len(listed) == 1:
            plan[axis] = listed[0]
    for axis, text in degrees.given().items():
        if "," in text:
            where = f"--{axis.replace('_', '-')}"
            raise UserError.of("usage_one_value", where=where, value=text)
    return {**plan, **degrees.given()}


def plan_fields(text: str) -> dict[str, str]:
    """Read a plan written as ``tp=8,pp=2,zero=1``.

    Raises:
        UserError: for a part without a value, and for one that stands twice.
    """
    fields: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        name = key.strip().replace("-", "_")
        if not equals or name in fields:
            code = "usage_plan_field_twice" if equals else "usage_bad_plan"
            raise UserError.of(code, where=text, value=part.strip() or "''")
        fields[name] = value.strip()
    return fields
