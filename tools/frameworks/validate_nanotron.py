"""nanotron's own config loader, from the checkout that ``NANOTRON`` names (no package has it)."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import stand_ins

stand_ins.install(
    "flash_attn", "flash_attn_2_cuda", "functorch_dummy", "torchtyping", "grouped_gemm"
)
sys.path.insert(0, str(Path(os.environ["NANOTRON"]) / "src"))

from nanotron.config import get_config_from_file
from protocol import serve


def check(case: Mapping[str, Any]) -> None:
    """Load the YAML; unknown keys and wrong types are refused."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
        file.write(case["yaml"])
    try:
        parallelism = get_config_from_file(file.name).parallelism
    finally:
        os.unlink(file.name)
    # ParallelContext checks the product when it makes its groups (parallel/context.py:22)
    degrees = parallelism.tp * parallelism.pp * parallelism.dp * parallelism.context_parallel_size
    if degrees != case["world"]:
        raise ValueError(f"{degrees} ranks in a world of {case['world']}")


if __name__ == "__main__":
    serve(check)
