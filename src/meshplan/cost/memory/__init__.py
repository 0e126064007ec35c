"""Memory per pipeline stage: what is alive at each event of a step, and whether it fits."""

from meshplan.cost.memory.grid import Screened, ScreenedMemory, peak_memory, screen_memory
from meshplan.cost.memory.host import offloaded_activations
from meshplan.cost.memory.records import Event, MemoryGrid, StageMemory, Term, Verdict
from meshplan.cost.memory.report import stage_memories, stage_memory

__all__ = [
    "Event",
    "MemoryGrid",
    "Screened",
    "ScreenedMemory",
    "StageMemory",
    "Term",
    "Verdict",
    "offloaded_activations",
    "peak_memory",
    "screen_memory",
    "stage_memories",
    "stage_memory",
]
