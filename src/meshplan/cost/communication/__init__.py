"""Bytes and seconds of the traffic of a plan, each term on its own and nothing overlapped."""

from __future__ import annotations

from meshplan.cost.communication.block import BlockCommunication, block_communication
from meshplan.cost.communication.parts import End, Part, parameters_of, trained_parameters_of
from meshplan.cost.communication.records import Network, Traffic
from meshplan.cost.communication.step import (
    DataParallel,
    data_parallel,
    data_parallel_parts,
    pipeline_send,
    tied_embedding_reduce,
)

__all__ = [
    "BlockCommunication",
    "DataParallel",
    "End",
    "Network",
    "Part",
    "Traffic",
    "block_communication",
    "data_parallel",
    "data_parallel_parts",
    "parameters_of",
    "pipeline_send",
    "tied_embedding_reduce",
    "trained_parameters_of",
]
