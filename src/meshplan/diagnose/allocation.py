"""Which tensor has the size of an allocation that failed.

The allocator of PyTorch rounds large requests up to 2 MiB and prints them with two digits after
the point, so that a size names few tensors; those of the plan as it stands come first, then those
that another micro-batch would have.
"""

from __future__ import annotations

import re

from meshplan.diagnose.names import measure_constant
from meshplan.diagnose.tensors import Form, activation_forms, state_forms
from meshplan.errors import UserError
from meshplan.inputs.scenario import Scenario
from meshplan.record import record
from meshplan.space.plan import Plan
from meshplan.units import GIB, MIB

__all__ = ["AllocationSize", "Candidate", "decode_allocation", "parse_allocation"]

_UNITS = {"kib": 2**10, "mib": MIB, "gib": GIB, "tib": 2**40, "b": 1, "bytes": 1}
_UNITS |= {"kb": 2**10, "mb": MIB, "gb": GIB, "tb": 2**40}  # older PyTorch wrote GB and meant GiB
_SIZE = re.compile(r"^\s*([0-9]{1,18})(?:\.([0-9]{1,9}))?\s*([KMGT]?i?B|bytes)?\s*$", re.IGNORECASE)
_MESSAGE = re.compile(r"tried to allocate\s+([0-9.]+\s*[KMGT]?i?B)", re.IGNORECASE)
_GRAIN = 2 * MIB
_SMALL, _LARGE = 1 * MIB, 10 * MIB
_MICRO_BATCHES = (*range(1, 9), 10, 12, 16, 20, 24, 32, 48, 64, 96, 128)
_MOST = 12


@record
class AllocationSize:
    """A size as a message prints it.

    Attributes:
        num_bytes: what it says [bytes].
        resolution_bytes: half a unit of its last digit [bytes].
    """

    num_bytes: float
    resolution_bytes: float = 0.5


@record
class Candidate:
    """A tensor of about that size.

    Attributes:
        code: ``tensor.<code>`` is its name.
        shape: its shape on one device.
        element_bytes: width of an element [bytes].
        num_bytes: its size [bytes].
        error: its size over what was asked for, minus one.
        exact: the difference is what rounding explains.
        micro_batch: micro-batch at which it has this size; None when it does not depend on it.
        same_plan: it is a tensor of the plan as it stands.
        stage: pipeline stage that asks for it; None when any does.
    """

    code: str
    shape: tuple[int, ...]
    element_bytes: int
    num_bytes: int
    error: float
    exact: bool
    micro_batch: int | None
    same_plan: bool
    stage: int | None


def parse_allocation(text: str, *, where: str = "allocation") -> AllocationSize:
    """Read a size as PyTorch prints it, such as ``12.94 GiB`` or ``786.00 MiB``.

    The whole message will do as well.

    Raises:
        UserError: ``allocation_size`` when it is none.
    """
    message = _MESSAGE.search(text)
    match = _SIZE.match(text if message is None else message[1])
    if match is None:
        raise UserError.of("allocation_size", where=where, value=text[:80])
    digits = match[2] or ""
    unit = _UNITS[(match[3] or "b").lower()]
    value = float(f"{match[1]}.{digits or '0'}") * unit
    if value <= 0:
        raise UserError.of("allocation_size", where=where, value=text[:80])
    return AllocationSize(num_bytes=value, resolution_bytes=0.5 * unit / 10 ** len(digits))


def decode_allocation(
    size: AllocationSize, scenario: Scenario, plan: Plan
) -> tuple[Candidate, ...]:
    """Name the tensors that have the size of an allocation, likeliest first.

    Args:
        size: what was asked for.
        scenario: model, cluster and job.
        plan: layout of the run.

    Returns:
        Exact matches, then those within one percent; at most a dozen, empty when nothing fits.
    """
    forms: list[tuple[Form, int | None]] = [(form, None) for form in state_forms(scenario, plan)]
    for micro_batch in dict.fromkeys((plan.micro_batch, *_MICRO_BATCHES)):
        own = activation_forms(scenario, plan, micro_batch=micro_batch)
        forms += [(form, micro_batch) for form in own]
    found: dict[tuple[object, ...], tuple[tuple[float, ...], Candidate]] = {}
    for form, batch in forms:
        for position, width in enumerate(form.widths):
            candidate = _candidate(form, width, batch, size, plan)
            if candidate is None:
                continue
            rank = (
                not candidate.exact,
                not candidate.same_plan,
                form.order + position,
                abs(candidate.error),
            )
            key = (form.code, form.shape, width)
            if key not in found or rank < found[key][0]:
                found[key] = (rank, candidate)
    ordered = sorted(found.values(), key=lambda pair: pair[0])
    return tuple(candidate for _, candidate in ordered[:_MOST])


def _candidate(
    form: Form, width: int, batch: int | None, size: AllocationSize, plan: Plan
) -> Candidate | None:
    num_bytes = form.num_elements * width
    asked = _rounded(num_bytes)
    # the message may give the request itself or what the allocator rounded it to
    off = min(abs(asked - size.num_bytes), abs(num_bytes - size.num_bytes))
    exact = off <= size.resolution_bytes
    if not exact and off > measure_constant("near_size") * size.num_bytes:
        return None
    return Candidate(
        code=form.code,
        shape=form.shape,
        element_bytes=width,
        num_bytes=num_bytes,
        error=num_bytes / size.num_bytes - 1.0,
        exact=exact,
        micro_batch=batch,
        same_plan=batch is None or batch == plan.micro_batch,
        stage=form.stage if plan.pp > 1 else None,
    )


def _rounded(num_bytes: int) -> int:
    """What PyTorch's caching allocator asks the device for (CUDACachingAllocator.cpp)."""
    if num_bytes <= _SMALL:
        return _GRAIN
    if num_bytes < _LARGE:
        return 2 * _LARGE
    return -(-num_bytes // _GRAIN) * _GRAIN
