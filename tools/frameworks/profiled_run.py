"""Train a tiny model on CPU ranks with gloo and profile it, healthy or with a fault.

``torchrun --nproc_per_node 4 profiled_run.py FOLDER [--slow-rank R] [--slow-collective N]``: rank R
takes half as long again for every product; every gradient bucket is reduced N times, as on a
network of one N-th of the speed. A product lasts a fixed time, as long as a device would take for
it, so that processes that share a few cores disturb each other little.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

WARM_UP, STEPS = 2, 6
LAYERS, WIDTH = 6, 384
FORWARD_S, BACKWARD_S = 0.012, 0.024
SLOWER = 1.5

# of this process, set once the rank is known
_factor = 1.0


_library = torch.library.Library("tiny", "DEF")
_library.define("device(Tensor x, float seconds) -> ()")


def device(x: torch.Tensor, seconds: float) -> None:
    """Take as long as the device that this process stands for."""
    time.sleep(seconds * _factor)


_library.impl("device", device, "CPU")


class Product(torch.autograd.Function):
    """A product that lasts."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """The product."""
        ctx.save_for_backward(x, w)
        torch.ops.tiny.device(x, FORWARD_S)
        return x @ w

    @staticmethod
    def backward(ctx, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of both factors."""
        x, w = ctx.saved_tensors
        torch.ops.tiny.device(dy, BACKWARD_S)
        return dy @ w.t(), x.t() @ dy


class Layer(torch.nn.Module):
    """A product and a non-linearity."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(Product.apply(x, self.weight))


def main() -> None:
    global _factor
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-collective", type=int, default=1)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    _factor = SLOWER if rank == given.slow_rank else 1.0
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [Layer() for _ in range(LAYERS)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1.2)
    if given.slow_collective > 1:
        model.register_comm_hook(given.slow_collective, repeated)
    optimizer = torch.optim.AdamW(model.parameters())

    def write(found: profile) -> None:
        found.export_chrome_trace(str(given.folder / f"rank{rank}.json.gz"))

    plan = schedule(wait=1, warmup=WARM_UP - 1, active=STEPS)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=write
    ) as profiler:
        for _ in range(WARM_UP + STEPS):
            step(model, optimizer)
            profiler.step()
    dist.destroy_process_group()


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One step."""
    loss = model(torch.ones(32, WIDTH)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def repeated(times: int, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket so many times."""
    buffer = bucket.buffer() / dist.get_world_size()
    for _ in range(times - 1):
        dist.all_reduce(buffer.clone())
    work = dist.all_reduce(buffer, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


if __name__ == "__main__":
    main()
