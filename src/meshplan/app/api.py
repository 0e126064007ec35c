"""The Python API: the verbs with keyword arguments instead of a request."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from meshplan.app import service

__all__ = ["compare", "estimate", "explain", "plan"]

Json = dict[str, Any]
Cluster = str | os.PathLike[str] | Mapping[str, Any]
Model = str | os.PathLike[str] | Mapping[str, Any]

_SCENARIO_KEYS = ("frameworks", "axes", "objective", "profile", "variant")


def plan(
    model: Model,
    *,
    cluster: Cluster,
    seq_len: int,
    global_batch: int,
    top: int = 5,
    **options: Any,
) -> Json:
    """Find the best plans for a model on a cluster, and say why.

    Example:
        >>> result = plan("llama-3.1-8b", cluster="8xH100", seq_len=8192, global_batch=128)
        >>> result["plans"][0]["memory"]["verdict"]
        'fits'

    Args:
        model: preset name, path of a ``config.json`` or its folder, or hub id.
        cluster: shorthand such as ``64xH100``, a cluster file, or the mapping that it holds.
        seq_len: tokens per sequence.
        global_batch: sequences per optimizer step over all devices.
        top: how many plans to return.
        options: ``frameworks``, ``axes``, ``objective``, ``profile`` and ``variant`` of a scenario
            file, and any field of its ``job``.

    Returns:
        The same result as ``meshplan plan --json``.

    Raises:
        UserError: with all that is wrong with the request.
    """
    asked = _request(model, cluster, seq_len=seq_len, global_batch=global_batch, options=options)
    return service.plan({**asked, "top": top})


def estimate(
    model: Model,
    *,
    cluster: Cluster,
    seq_len: int,
    global_batch: int,
    degrees: Mapping[str, Any],
    **options: Any,
) -> Json:
    """Judge one given plan.

    Example:
        >>> one = {"tp": 2, "zero": 1}
        >>> result = estimate(
        ...     "llama-3.1-8b", cluster="8xH100", seq_len=8192, global_batch=128, degrees=one
        ... )
        >>> result["plans"][0]["plan"]["dp"]
        4

    Args:
        model: see :func:`plan`, as the other arguments.
        cluster: the cluster.
        seq_len: tokens per sequence.
        global_batch: sequences per optimizer step.
        degrees: fields of the plan; the framework decides what is left out.
        options: see :func:`plan`.

    Returns:
        The same result as ``meshplan estimate --json``.

    Raises:
        UserError: with each rule that the plan breaks, and the degrees that would be legal.
    """
    asked = _request(model, cluster, seq_len=seq_len, global_batch=global_batch, options=options)
    return service.estimate({**asked, "plan": degrees})


def compare(
    model: Model,
    *,
    cluster: Cluster,
    seq_len: int,
    global_batch: int,
    plans: Sequence[Mapping[str, Any]],
    **options: Any,
) -> Json:
    """Put two to four plans side by side.

    Args:
        model: see :func:`plan`, as the other arguments.
        cluster: the cluster.
        seq_len: tokens per sequence.
        global_batch: sequences per optimizer step.
        plans: fields of each plan.
        options: see :func:`plan`.

    Returns:
        The same result as ``meshplan compare --json``.
    """
    asked = _request(model, cluster, seq_len=seq_len, global_batch=global_batch, options=options)
    return service.compare({**asked, "plans": plans})


def explain(
    model: Model,
    *,
    cluster: Cluster,
    seq_len: int,
    global_batch: int,
    degrees: Mapping[str, Any] | None = None,
    **options: Any,
) -> Json:
    """Show each formula of a plan with its numbers and their sources.

    Args:
        model: see :func:`plan`, as the other arguments.
        cluster: the cluster.
        seq_len: tokens per sequence.
        global_batch: sequences per optimizer step.
        degrees: fields of the plan; the best plan when there are none.
        options: see :func:`plan`.

    Returns:
        The same result as ``meshplan explain --json``.
    """
    asked = _request(model, cluster, seq_len=seq_len, global_batch=global_batch, options=options)
    return service.explain({**asked, "plan": degrees})


def _request(
    model: Model,
    cluster: Cluster,
    *,
    seq_len: int,
    global_batch: int,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    job = {key: value for key, value in options.items() if key not in _SCENARIO_KEYS}
    rest = {key: value for key, value in options.items() if key in _SCENARIO_KEYS}
    return {
        "model": os.fspath(model) if isinstance(model, os.PathLike) else model,
        "cluster": os.fspath(cluster) if isinstance(cluster, os.PathLike) else cluster,
        "job": {"seq_len": seq_len, "global_batch": global_batch, **job},
        **rest,
    }
