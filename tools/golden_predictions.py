"""Predict 30 scenarios and print what moved against the golden predictions.

    python tools/golden_predictions.py [--write]

Predictions change only on purpose: a change that moves them writes the file anew and says why.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from meshplan.cost.memory import peak_memory
from meshplan.cost.step import PARTS, step_time
from meshplan.inputs.job import Job
from meshplan.inputs.load.cluster import parse_cluster
from meshplan.inputs.load.hf_config import load_model
from meshplan.inputs.scenario import Scenario
from meshplan.space.plan import CpComm, Framework, Plan, PlanGrid, Recompute, Schedule, Split

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden" / "predictions.json"
TOLERANCE = 1e-6

# model, cluster, sequence, batch, precision, framework, degrees
SCENARIOS = [
    "llama-3.1-8b 8xH100 8192 128 bf16 megatron cp=2 zero=1",
    "llama-3.1-8b 8xH100 8192 128 fp8 megatron zero=1",
    "llama-3.1-8b 8xH100 8192 64 bf16 torchtitan zero=3 recompute=SELECTIVE_OP",
    "llama-3.1-8b 128xH100 8192 512 bf16 torchtitan zero=3 recompute=FULL",
    "llama-3.1-8b 64xA100-80GB 4096 512 bf16 accelerate zero=3 recompute=FULL micro_batch=4",
    "llama-3.1-8b 64xH100 4096 256 bf16 nanotron tp=4 zero=1",
    "llama-3.1-8b 16xMI300X 8192 128 bf16 megatron zero=1",
    "llama-3.1-70b 64xH100 8192 1024 bf16 megatron tp=4 pp=4 vpp=5 zero=1",
    "llama-3.1-70b 64xH100 8192 128 fp8 megatron tp=4 pp=8 vpp=5 zero=1",
    "llama-3.1-70b 256xH100 8192 512 bf16 torchtitan tp=8 zero=3 recompute=FULL micro_batch=2",
    "llama-3.1-70b 64xB200 8192 128 bf16 megatron tp=2 pp=4 vpp=5 zero=1",
    "llama-3.1-70b 64xGB200 8192 128 mxfp8 megatron tp=2 pp=4 vpp=5 zero=1",
    "llama-3.1-70b 128xA100-80GB 4096 256 bf16 deepspeed tp=8 pp=4 zero=1 recompute=FULL",
    "llama-3.1-405b 1024xH100 8192 512 bf16 megatron tp=8 pp=8 vpp=8 cp=2 zero=1 split=BALANCED",
    "llama-3.1-405b 16384xH100 8192 2048 bf16 megatron tp=8 pp=16 vpp=8 zero=1 split=BALANCED",
    "gpt3-175b 64xA100-80GB 2048 64 fp16 megatron tp=8 pp=8 vpp=3 recompute=CORE_ATTENTION",
    "gpt3-175b 1024xA100-80GB 2048 1536 fp16 megatron tp=8 pp=8 vpp=3 zero=1",
    "gpt3-175b 512xA100-80GB 2048 512 bf16 megatron tp=8 pp=16 schedule=ZB_H1 zero=1",
    "gpt3-175b 512xA100-80GB 2048 512 bf16 megatron tp=8 pp=16 schedule=ZB_2P zero=1",
    "gpt3-175b 512xA100-80GB 2048 512 bf16 torchtitan tp=8 pp=8 vpp=2 schedule=ZBV zero=1",
    "gpt3-175b 256xV100-32GB 2048 256 fp16 deepspeed tp=8 pp=16 recompute=FULL",
    "mixtral-8x7b 64xH100 4096 256 bf16 megatron pp=4 ep=8 zero=1",
    "mixtral-8x7b 64xH100 4096 256 bf16 megatron tp=4 ep=8 etp=2 zero=1",
    "mixtral-8x7b 32xA100-80GB 4096 128 bf16 megatron pp=2 ep=8 zero=1 recompute=FULL",
    "deepseek-v3 1024xH100 4096 8192 fp8 megatron tp=2 pp=16 ep=64 zero=1 uneven",
    "deepseek-v3 256xGB200 4096 2048 mxfp8 megatron pp=4 vpp=4 ep=64 zero=1 uneven",
    "qwen3-30b-a3b 16xH100 4096 512 bf16 megatron ep=8 zero=1",
    "qwen3-235b-a22b 256xH100 4096 2048 bf16 megatron tp=2 pp=8 ep=32 zero=1 uneven",
    "llama-3.1-8b 8xL40S 2048 32 bf16 accelerate zero=3 recompute=FULL",
    "gpt2-xl 8xA100-40GB 1024 64 bf16 accelerate zero=2",
]
_ENUMS = {"schedule": Schedule, "recompute": Recompute, "split": Split}


def read(line: str) -> tuple[Scenario, Plan]:
    """Turn one line into a scenario and a plan."""
    name, cluster_text, seq_len, batch, precision, framework, *given = line.split()
    cluster = parse_cluster(cluster_text)
    model = load_model(name)
    values: dict[str, object] = {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "zero": 0}
    values |= {"micro_batch": 1, "recompute": Recompute.NONE, "split": Split.EVEN}
    uneven = "uneven" in given
    for item in given:
        key, _, value = item.partition("=")
        if value:
            values[key] = _ENUMS[key][value] if key in _ENUMS else int(value)
    tp, pp, vpp = int(values["tp"]), int(values["pp"]), int(values["vpp"])
    dp = cluster.num_gpus // (tp * pp * int(values["cp"]))
    values.setdefault("schedule", Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B)
    values.setdefault("etp", 1 if model.is_moe else tp)
    layers: tuple[int, ...] = ()
    if uneven:
        stages = pp * vpp
        base, extra = divmod(model.num_layers + 2, stages)
        dealt = [base + (i < extra) for i in range(stages)]
        dealt[0] -= 1
        dealt[-1] -= 1
        layers = tuple(dealt)
    job = Job(seq_len=int(seq_len), global_batch=int(batch), precision=precision)
    plan = Plan(
        framework=Framework[framework.upper()],
        sp=tp > 1,
        cp_comm=CpComm.P2P,
        dp=dp,
        dp_shard=dp,
        dp_replicate=1,
        num_micro_batches=int(batch) // (dp * int(values["micro_batch"])),
        stage_layers=layers,
        **values,
    )
    return Scenario(model=model, cluster=cluster, job=job, frameworks=(framework,)), plan


def predict(line: str) -> dict[str, float]:
    """Step time, its parts and the peak memory of one scenario."""
    scenario, plan = read(line)
    grid = PlanGrid.of([plan])
    time = step_time(scenario, grid, exact=True)
    names = ("step_time_s", "high_s", "mfu", *PARTS)
    found = {name: float(f"{getattr(time, name)[0]:.10g}") for name in names}
    found["peak_bytes"] = float(peak_memory(scenario, grid).peak_bytes[0])
    return found


def moved(old: dict[str, float], new: dict[str, float]) -> list[str]:
    """What changed beyond the tolerance, with both values."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name, 0.0), new.get(name, 0.0)
        scale = max(abs(before), abs(after), 1e-9)
        # parts are compared against the step, so that noise in tiny ones is no change
        scale = max(scale, new.get("step_time_s", 0.0)) if name.endswith("_s") else scale
        if abs(after - before) > TOLERANCE * scale:
            change = f" ({100 * (after / before - 1):+.2f} %)" if before else ""
            lines.append(f"{name}: {before:g} -> {after:g}{change}")
    return lines


def main() -> int:
    """Print what moved; write the file anew when asked to."""
    old = json.loads(GOLDEN.read_text("utf-8")) if GOLDEN.exists() else {}
    new = {line: predict(line) for line in SCENARIOS}
    changed = 0
    for line, found in new.items():
        lines = moved(old.get(line, {}), found)
        if lines:
            changed += 1
            print(line)
            print("\n".join("    " + text for text in lines))
    print(f"{changed} of {len(SCENARIOS)} scenarios moved")
    if "--write" in sys.argv:
        GOLDEN.write_text(json.dumps(new, indent=1) + "\n", "utf-8")
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
