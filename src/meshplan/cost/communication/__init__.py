"""Bytes and seconds of the traffic of a plan, each term on its own and nothing overlapped."""

from __future__ import annotations

from meshplan.cost.communication.block import BlockCommunication, block_communication
from meshplan.cost.communication.records import Network, Traffic
from meshplan.cost.communication.step import (
    DataParallel,
    End,
    data_parallel,
    pipeline_send,
    tied_embedding_reduce,
)

__all__ = [
    "BlockCommunication",
    "DataParallel",
    "End",
    "Network",
    "Traffic",
    "block_communication",
    "data_parallel",
    "pipeline_send",
    "tied_embedding_reduce",
]
