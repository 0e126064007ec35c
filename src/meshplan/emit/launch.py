"""Launchers around a program: torchrun, Slurm, Kubeflow Trainer v2, SkyPilot.

Every launcher starts one ``train.sh`` per node with the same three variables. Ranks count through
the GPUs of a node and then through the nodes in the launcher's order, which is the placement that
the plan was costed with.

References:
    1. ``torchrun`` of torch 2.13: static rendezvous by ``--node-rank``.
    2. Kubeflow Trainer v2 ``pkg/apis/trainer/v1alpha1/trainjob_types.go`` at 8c0f5059; its torch
       plugin sets the ``PET_*`` variables.
    3. SkyPilot's documentation of distributed jobs: ``SKYPILOT_NODE_RANK``, ``SKYPILOT_NODE_IPS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from meshplan.emit.bash import array, comment, exports, quote
from meshplan.emit.records import EmittedFile, Obstacle, Order, Program
from meshplan.emit.yaml import block_yaml

__all__ = ["LAUNCHERS", "launch", "launcher_obstacles"]

_SCRIPT = "train.sh"
_PORT = 29500
_RESOURCES = {
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "intel": "habana.ai/gaudi",
    "huawei": "huawei.com/Ascend910",
    "google": "google.com/tpu",
}
# What SkyPilot calls a device where it is not what we call it.
_SKYPILOT = {
    "A100-80GB": "A100-80GB",
    "A100-40GB": "A100",
    "V100-16GB": "V100",
    "V100-32GB": "V100-32GB",
    "RTX-4090": "RTX4090",
    "RTX-3090": "RTX3090",
    "RTX-6000-Ada": "RTX6000-Ada",
    "MI300X": "MI300X",
}
_WORD = re.compile(r"[^a-z0-9]+")


def launcher_obstacles(order: Order) -> tuple[Obstacle, ...]:
    """What no launcher can start: nodes with unequal numbers of GPUs."""
    cluster = order.scenario.cluster
    if cluster.num_nodes > 1 and cluster.num_gpus % cluster.gpus_per_node:
        numbers = {"num_gpus": cluster.num_gpus, "gpus_per_node": cluster.gpus_per_node}
        return (Obstacle(code="uneven_nodes", numbers=numbers, model=True),)
    return ()


def _per_node(order: Order) -> int:
    cluster = order.scenario.cluster
    return min(cluster.gpus_per_node, cluster.num_gpus)


def _name(order: Order) -> str:
    """A name that Slurm, Kubernetes and SkyPilot all take (RFC 1123, at most 40 characters)."""
    raw = re.split(r"[/\\]", order.scenario.model.name)[-1].lower().removesuffix(".json")
    words = _WORD.sub("-", raw).strip("-")[:40].strip("-")
    return words if words[:1].isalpha() else f"train-{words}".strip("-")


def _start(order: Order, program: Program) -> list[str]:
    """Lines of the command that starts one node, without their backslashes."""
    nodes, each = order.scenario.cluster.num_nodes, _per_node(order)
    rank, host = '"${NODE_RANK:-0}"', '"${MASTER_ADDR:-localhost}"'
    port = f'"${{MASTER_PORT:-{_PORT}}}"'
    if program.start == "torchrun":
        return [
            "exec torchrun",
            f"--nnodes {nodes} --nproc-per-node {each} --node-rank {rank}",
            f"--master-addr {host} --master-port {port}",
        ]
    if program.start == "accelerate":
        return [
            f'exec accelerate launch --config_file "$HERE/{program.config}"',
            f"--machine_rank {rank} --main_process_ip {host} --main_process_port {port}",
        ]
    return ["exec python3"]


def _jax_environment(order: Order) -> str:
    """What JAX needs to find the other nodes."""
    if order.scenario.cluster.num_nodes == 1:
        return ""
    return (
        'export JAX_COORDINATOR_IP="${MASTER_ADDR:-localhost}" '
        f'JAX_COORDINATOR_PORT="${{MASTER_PORT:-{_PORT}}}"\n'
        f'export NNODES={order.scenario.cluster.num_nodes} NODE_RANK="${{NODE_RANK:-0}}"\n'
    )


def _train_script(order: Order, program: Program) -> str:
    parts = ["#!/usr/bin/env bash\n", comment(order.notes), "set -euo pipefail\n"]
    here = program.files or any("$HERE" in word for word in program.words)
    if here:
        parts.append('HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-.}")" && pwd)\n')
    if any(file.name.endswith(".py") for file in program.files):
        parts.append('export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"\n')
    if program.start == "node":
        parts.append(_jax_environment(order))
    if program.environment:
        parts.append(exports(program.environment))
    groups = {name: flags for name, flags in program.groups.items() if flags}
    parts += [array(name, flags) for name, flags in groups.items()]
    words = [" ".join(f'"${{{name}[@]}}"' for name in groups)] if groups else []
    if program.trial:
        parts.append(
            comment(order.trial_notes)
            + array("RUN", program.trial)
            + 'if (( $# > 0 )); then RUN=("$@"); fi\n'
        )
        words.append('"${RUN[@]}"')
    else:
        words.append('"$@"')
    lines = [*_start(order, program), *program.words, " ".join(words)]
    parts.append(" \\\n  ".join(lines) + "\n")
    return "\n".join(part for part in parts if part)


def _base_files(order: Order, program: Program) -> tuple[EmittedFile, ...]:
    script = EmittedFile(name=_SCRIPT, text=_train_script(order, program), executable=True)
    return (script, *program.files)


def _torchrun(order: Order, program: Program) -> tuple[EmittedFile, ...]:
    return _base_files(order, program)


def _slurm(order: Order, program: Program) -> tuple[EmittedFile, ...]:
    nodes, each = order.scenario.cluster.num_nodes, _per_node(order)
    text = (
        "#!/usr/bin/env bash\n"
        f"#SBATCH --job-name={_name(order)}\n"
        f"#SBATCH --nodes={nodes}\n"
        "#SBATCH --ntasks-per-node=1\n"
        f"#SBATCH --gpus-per-node={each}\n"
        "#SBATCH --exclusive\n"
        # all CPUs come with that, all memory does not
        "#SBATCH --mem=0\n"
        "#SBATCH --output=%x-%j.log\n" + comment(order.notes) + "set -euo pipefail\n\n"
        'read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")\n'
        f"export MASTER_ADDR MASTER_PORT={_PORT}\n"
        + comment(order.node_notes)
        + "# shellcheck disable=SC2016  # the inner shell expands them, on each node\n"
        'srun --kill-on-bad-exit=1 bash -c \'NODE_RANK=$SLURM_NODEID exec bash "$0" "$@"\' \\\n'
        f'  "$SLURM_SUBMIT_DIR/{_SCRIPT}" "$@"\n'
    )
    return (EmittedFile(name="train.sbatch", text=text), *_base_files(order, program))


def _kubeflow(order: Order, program: Program) -> tuple[EmittedFile, ...]:
    """One TrainJob that carries its script and config files, so that the image needs neither."""
    each = _per_node(order)
    resource = _RESOURCES[order.scenario.cluster.device.vendor]
    body = "".join(_inline(program)) + _train_script(order, program).split("\n", 1)[1]
    script = (
        'export NODE_RANK="${PET_NODE_RANK:-0}" MASTER_ADDR="${PET_MASTER_ADDR:-localhost}" '
        f'MASTER_PORT="${{PET_MASTER_PORT:-{_PORT}}}"\n' + body
    )
    trainer = {
        "numNodes": order.scenario.cluster.num_nodes,
        "numProcPerNode": each,
        "command": ["bash", "-c"],
        # the first word after the script is its name
        "args": [script, _SCRIPT],
        "resourcesPerNode": {"limits": {resource: each}, "requests": {resource: each}},
    }
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": _name(order)},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer},
    }
    hint = comment(
        [
            "add spec.trainer.image: an image that holds the framework; what train.sh asks for",
            "by name (such as MEGATRON_LM) goes to spec.trainer.env",
        ]
    )
    text = comment(order.notes) + hint + block_yaml(job)
    return (EmittedFile(name="trainjob.yaml", text=text),)


def _inline(program: Program) -> Iterator[str]:
    """Commands that write the config files beside the script."""
    for file in program.files:
        end = "END_OF_FILE"
        while end in file.text:
            end += "_"
        yield f"cat > {quote(file.name)} <<'{end}'\n{file.text.rstrip()}\n{end}\n"


def _skypilot(order: Order, program: Program) -> tuple[EmittedFile, ...]:
    cluster = order.scenario.cluster
    device = _SKYPILOT.get(cluster.device.name, cluster.device.name)
    run = (
        'MASTER_ADDR=$(head -n 1 <<< "$SKYPILOT_NODE_IPS")\n'
        f"export MASTER_ADDR MASTER_PORT={_PORT} "
        'NODE_RANK="$SKYPILOT_NODE_RANK"\n'
        f"bash {_SCRIPT}\n"
    )
    task: dict[str, object] = {
        "name": _name(order),
        "num_nodes": cluster.num_nodes,
        "resources": {"accelerators": {device: _per_node(order)}},
        "workdir": ".",
        "run": run,
    }
    if cluster.num_nodes > 1:
        task["resources"] = {"accelerators": {device: _per_node(order)}, "network_tier": "best"}
    text = comment(order.notes) + block_yaml(task)
    return (EmittedFile(name="sky.yaml", text=text), *_base_files(order, program))


LAUNCHERS: dict[str, Callable[[Order, Program], tuple[EmittedFile, ...]]] = {
    "torchrun": _torchrun,
    "slurm": _slurm,
    "kubeflow": _kubeflow,
    "skypilot": _skypilot,
}


def launch(order: Order, program: Program, *, launcher: str) -> tuple[EmittedFile, ...]:
    """All files that start a program with a launcher, the one to begin with first."""
    return LAUNCHERS[launcher](order, program)
