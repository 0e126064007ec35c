"""Splitting one matrix product over several workers, on real matrices.

References:
    [1] M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using
        Model Parallelism", section 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from meshplan.errors import UserError
from meshplan.thumb.checks import check_numbers

__all__ = ["column_parallel", "column_shards", "row_parallel", "row_shards"]

Matrix = npt.NDArray[Any]


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _split(matrix: Matrix, *, tp: int, axis: int, where: str) -> tuple[Matrix, ...]:
    check_numbers(counts={"tp": tp})
    length = matrix.shape[axis]
    if length % tp:
        raise UserError.of(
            "split_uneven", where=where, value=tp, allowed=_divisors(length), length=length
        )
    return tuple(np.split(matrix, tp, axis=axis))


def column_shards(weight: Matrix, *, tp: int) -> tuple[Matrix, ...]:
    """Cut a weight of shape ``(k, n)`` into ``tp`` pieces of shape ``(k, n / tp)``."""
    return _split(np.asarray(weight), tp=tp, axis=-1, where="weight columns")


def row_shards(weight: Matrix, *, tp: int) -> tuple[Matrix, ...]:
    """Cut a weight of shape ``(k, n)`` into ``tp`` pieces of shape ``(k / tp, n)``."""
    return _split(np.asarray(weight), tp=tp, axis=0, where="weight rows")


def column_parallel(x: Matrix, weight: Matrix, *, tp: int) -> Matrix:
    """Multiply with the weight split by columns: every worker sees all of ``x`` [1].

    Equation:
        ``Y = concat(X W_1, ..., X W_n)``

    Args:
        x: input of shape ``(m, k)``.
        weight: weight of shape ``(k, n)``.
        tp: workers; must divide ``n``.

    Returns:
        The product of shape ``(m, n)``: pieces are concatenated (an all-gather).
    """
    _check_inner(x, weight)
    return np.concatenate([x @ shard for shard in column_shards(weight, tp=tp)], axis=-1)


def row_parallel(x: Matrix, weight: Matrix, *, tp: int) -> Matrix:
    """Multiply with the weight split by rows: every worker sees its columns of ``x`` [1].

    Equation:
        ``Y = X_1 W_1 + ... + X_n W_n``

    Args:
        x: input of shape ``(m, k)``.
        weight: weight of shape ``(k, n)``.
        tp: workers; must divide ``k``.

    Returns:
        The product of shape ``(m, n)``: pieces are summed (an all-reduce).
    """
    _check_inner(x, weight)
    slices = _split(np.asarray(x), tp=tp, axis=-1, where="input columns")
    parts = [piece @ shard for piece, shard in zip(slices, row_shards(weight, tp=tp), strict=True)]
    total: Matrix = np.sum(parts, axis=0)
    return total


def _check_inner(x: Matrix, weight: Matrix) -> None:
    inner, rows = np.shape(x)[-1], np.shape(weight)[0]
    if inner != rows:
        raise UserError.of("shapes_do_not_match", where="x @ weight", value=inner, allowed=[rows])
