"""Weight matrices and vectors by how tensor parallelism splits them."""

from __future__ import annotations

from typing import Literal

from meshplan.record import record

__all__ = ["Projection", "Vector", "Weights", "columns", "rows", "whole"]


@record
class Projection:
    """One matrix ``y[out] = x[in] W`` with an optional bias.

    Attributes:
        name: the usual name of the module (``q_proj``, ``down_proj``, ...).
        in_features: width of the input.
        out_features: width of the output.
        split: ``column`` shards the output, ``row`` the input, ``none`` neither.
        num_units: indivisible parts of the sharded width (heads, channels). A group of more
            devices than units holds copies, as with few key-value heads.
        bias: a bias of ``out_features``; sharded with the columns, replicated with rows.
    """

    name: str
    in_features: int
    out_features: int
    split: Literal["column", "row", "none"]
    num_units: int
    bias: bool = False


@record
class Vector:
    """Weights that are not a matrix product: norms, convolutions, decays, sinks.

    Attributes:
        name: what they are.
        size: number of elements.
        num_units: parts that tensor parallelism shares out; 0 when every device holds all.
    """

    name: str
    size: int
    num_units: int = 0


@record
class Weights:
    """All weights of a mixer or a feed-forward network."""

    projections: tuple[Projection, ...]
    vectors: tuple[Vector, ...] = ()


def columns(name: str, hidden: int, units: int, width: int, *, bias: bool = False) -> Projection:
    """A matrix whose output is split: ``units`` heads or channels of ``width`` each."""
    return Projection(
        name=name,
        in_features=hidden,
        out_features=units * width,
        split="column",
        num_units=units,
        bias=bias,
    )


def rows(name: str, units: int, width: int, hidden: int, *, bias: bool = False) -> Projection:
    """A matrix whose input is split, with the sum over devices at its output."""
    return Projection(
        name=name,
        in_features=units * width,
        out_features=hidden,
        split="row",
        num_units=units,
        bias=bias,
    )


def whole(name: str, in_features: int, out_features: int, *, bias: bool = False) -> Projection:
    """A matrix that every device of a tensor-parallel group holds in full."""
    return Projection(
        name=name,
        in_features=in_features,
        out_features=out_features,
        split="none",
        num_units=1,
        bias=bias,
    )
