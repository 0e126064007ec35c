"""MaxText's own config loader: ``base.yml``, the model's file, its pydantic types and its mesh.

JAX is not needed for it: the config asks for the number of devices and no more.
"""

from __future__ import annotations

import ast
import os
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import stand_ins

UTILITIES = "maxtext.utils.max_utils"
stand_ins.install("jax", "flax", "orbax", "pathwaysutils", "etils")
stand_ins.stand_in_for_parts(UTILITIES, "maxtext.utils.elastic_utils")

import jax
import numpy as np
from maxtext.configs.pyconfig import initialize_pydantic
from maxtext.utils import max_utils
from protocol import serve

GPUS_PER_NODE = 8


def _mesh_check() -> Any:
    """The check of the mesh, which stands in a module that needs JAX, compiled alone."""
    place = find_spec("maxtext")
    assert place is not None and place.submodule_search_locations is not None
    folder = Path(next(iter(place.submodule_search_locations)))
    tree = ast.parse(folder.joinpath("utils", "max_utils.py").read_text(encoding="utf-8"))
    name = "fill_unspecified_mesh_axes"
    (function,) = [node for node in tree.body if getattr(node, "name", "") == name]
    space: dict[str, Any] = {"np": np}
    exec(compile(ast.Module([function], []), "max_utils.py", "exec"), space)
    return space[name]


MESH = _mesh_check()


def check(case: Mapping[str, Any]) -> None:
    """Load the YAML as a job of that size would, one slice per node."""
    world = case["world"]
    slices = max(1, world // GPUS_PER_NODE)
    jax.devices = lambda *a, **k: list(range(world))
    jax.local_device_count = lambda *a, **k: min(world, GPUS_PER_NODE)
    max_utils.get_num_slices = lambda *a, **k: slices
    with tempfile.NamedTemporaryFile("w", suffix=".yml", delete=False) as file:
        file.write(case["yaml"])
    try:
        config = initialize_pydantic(["train.py", file.name])
    finally:
        os.unlink(file.name)
    batch = config.global_batch_size_to_train_on
    if batch != case["batch"]:
        raise ValueError(f"a step trains on {batch} sequences, not {case['batch']}")
    MESH(list(config.ici_parallelism), world // slices, "ICI")
    if slices > 1:
        MESH(list(config.dcn_parallelism), slices, "DCN")


if __name__ == "__main__":
    serve(check)
