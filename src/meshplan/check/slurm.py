"""What ``#SBATCH`` lines ask for, as the variables that Slurm then sets in the script.

References:
    1. ``sbatch`` of Slurm, "Output environment variables".
"""

from __future__ import annotations

import re

from meshplan.check.records import Setting, Source

__all__ = ["slurm_settings", "slurm_variables"]

_LINE = re.compile(r"^#SBATCH[ \t]+(.+)$", re.MULTILINE)
_OPTIONS = {
    "nodes": re.compile(r"(?:^|\s)(?:--nodes[= ]|-N ?)(\d{1,6})(?=\s|$)"),
    "gpus": re.compile(
        r"(?:^|\s)--(?:gpus-per-node[= ]|gres[= ]gpu:)(?:[A-Za-z]\w*:)?(\d{1,4})(?=\s|$)"
    ),
    "tasks": re.compile(r"(?:^|\s)--ntasks-per-node[= ](\d{1,4})(?=\s|$)"),
}
_NAMES = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "gpus": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "tasks": ("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
}


def slurm_settings(source: Source) -> dict[str, Setting]:
    """Nodes, and GPUs of a node, that directives ask for, with their lines.

    They are defaults: options of ``sbatch`` override them.
    """
    found: dict[str, Setting] = {}
    for number, line in enumerate(source.text.split("\n"), 1):
        match = _LINE.match(line)
        for key, name in (("nodes", "num_nodes"), ("gpus", "gpus_per_node")):
            if match and (value := _OPTIONS[key].search(match[1].split(" #")[0].rstrip())):
                where = f"{source.name}:{number}"
                spelled = f"#SBATCH {re.split('[= 0-9]', value[0].strip())[0]}"
                asked = int(value[1])
                found[name] = Setting(value=asked, where=where, spelled=spelled, soft=True)
    return found


def slurm_variables(text: str) -> dict[str, str]:
    """Variables that follow from a batch script's own directives.

    Args:
        text: the script.

    Returns:
        Values by name; only whole numbers, and only what the script states. The last directive
        counts, and a range of nodes (``--nodes=2-4``) is left unknown.
    """
    found: dict[str, int] = {}
    for line in _LINE.findall(text):
        plain = line.split(" #")[0].rstrip()
        for key, pattern in _OPTIONS.items():
            if match := pattern.search(plain):
                found[key] = int(match[1])
    variables = {name: str(value) for key, value in found.items() for name in _NAMES[key]}
    if "nodes" in found and "tasks" in found:
        for name in ("SLURM_NTASKS", "SLURM_NPROCS"):
            variables[name] = str(found["nodes"] * found["tasks"])
    return variables
