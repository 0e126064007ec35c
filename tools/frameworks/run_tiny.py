"""Train a tiny Llama on four CPU processes with FSDP2 x TP as a plan says, and count its bytes.

``torchrun --nproc-per-node 4 run_tiny.py MODULE`` where ``MODULE`` is the emitted
``meshplan_torchtitan.py``: the degrees, sequence, batch and dimensions are read from the config
that it returns. The model is plain PyTorch with the parallel styles that torchtitan uses, in fp32
with the gloo backend. Rank 0 prints one line of JSON: bytes of each kind of collective in a step,
the loss of the first and the last step.
"""

from __future__ import annotations

import collections
import importlib.util
import json
import sys
from typing import Any

import stand_ins

stand_ins.install()

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

STEPS = 20
KINDS = ("all_gather", "reduce_scatter", "all_reduce")


class Counter(TorchDispatchMode):
    """Counts bytes of the whole buffer of each collective: its larger side."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: collections.Counter[str] = collections.Counter()
        self.calls: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        kind = next((k for k in KINDS if k in name_of(func)), None)
        if kind is not None:
            # FSDP's calls write into buffers of c10d, tensor parallelism is functional
            axis = "tp" if func.namespace == "_c10d_functional" else "dp"
            self.bytes[f"{axis}_{kind}"] += max(_total(args), _total(result))
            self.calls[f"{axis}_{kind}"] += 1
        return result


def name_of(func: Any) -> str:
    """The name of a collective with its words apart; empty for any other operator."""
    if func.namespace not in ("_c10d_functional", "c10d"):
        return ""
    return func._opname.replace("allgather", "all_gather").replace("allreduce", "all_reduce")


def _total(side: Any) -> int:
    """Bytes of the largest tensor on one side of a collective."""
    return max(
        (x.numel() * x.element_size() for x in tree_leaves(side) if torch.is_tensor(x)), default=0
    )


class Attention(nn.Module):
    """Grouped-query attention without rotation, which moves no bytes."""

    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.width = dim // heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.width, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.width, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, _ = x.shape
        q, k, v = (
            w(x).view(batch, seq, -1, self.width).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(out.transpose(1, 2).reshape(batch, seq, -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """One block of Llama."""

    def __init__(self, dim: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attention = Attention(dim, heads, kv_heads)
        self.feed_forward = FeedForward(dim, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """Embedding, blocks, norm, head."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        first = config.layers[0]
        heads = first.attention.n_heads
        kv_heads = first.attention.n_kv_heads or heads
        hidden = first.feed_forward.w1.out_features
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(
            Block(config.dim, heads, kv_heads, hidden) for _ in config.layers
        )
        self.norm = nn.RMSNorm(config.dim)
        self.lm_head = nn.Linear(config.dim, config.vocab_size, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def parallelize(model: Llama, mesh: Any, reshard: bool) -> None:
    """Tensor parallelism with sequence parallelism, then FSDP2 block by block."""
    tp, dp = mesh["tp"], mesh["dp"]
    if tp.size() > 1:
        whole = Replicate()
        parallelize_module(
            model,
            tp,
            {
                "tok_embeddings": RowwiseParallel(input_layouts=whole, output_layouts=Shard(1)),
                "norm": SequenceParallel(),
                "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=whole),
            },
        )
        gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(whole,))
        for layer in model.layers:
            columns = ("attention.wq", "attention.wk", "attention.wv")
            columns += ("feed_forward.w1", "feed_forward.w3")
            rows = ("attention.wo", "feed_forward.w2")
            plan: dict[str, Any] = {name: ColwiseParallel() for name in columns}
            plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in rows}
            plan |= {name: SequenceParallel() for name in ("attention_norm", "ffn_norm")}
            plan |= {name: gather for name in ("attention", "feed_forward")}
            parallelize_module(layer, tp, plan)
    if dp.size() > 1:
        for layer in model.layers:
            fully_shard(layer, mesh=dp, reshard_after_forward=reshard)
        fully_shard(model, mesh=dp, reshard_after_forward=reshard)


def main() -> None:
    """Train for a few steps, then count one more."""
    spec = importlib.util.spec_from_file_location("meshplan_torchtitan", sys.argv[1])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.train()
    parallelism, training = config.parallelism, config.training
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shard, tensor = parallelism.data_parallel_shard_degree, parallelism.tensor_parallel_degree
    mesh = init_device_mesh("cpu", (shard, tensor), mesh_dim_names=("dp", "tp"))
    model = Llama(config.model_spec.model)
    parameters = sum(p.numel() for p in model.parameters())
    parallelize(model, mesh, parallelism.fsdp_reshard_after_forward != "never")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    torch.manual_seed(mesh["dp"].get_local_rank())
    shape = (training.local_batch_size, training.seq_len)
    vocab = config.model_spec.model.vocab_size
    batch = torch.randint(0, vocab, shape)
    rounds = training.global_batch_size // (training.local_batch_size * shard)

    def step() -> float:
        total = 0.0
        for _ in range(rounds):
            logits = model(batch).flatten(0, 1).float()
            loss = functional.cross_entropy(logits, batch.roll(-1, 1).flatten()) / rounds
            loss.backward()
            total += float(loss)
        return total

    losses = []
    for _ in range(STEPS):
        losses.append(step())
        optimizer.step()
        optimizer.zero_grad()
    counter = Counter()
    with counter:
        step()
    if dist.get_rank() == 0:
        print(
            json.dumps(
                {
                    "parameters": parameters,
                    "first_loss": losses[0],
                    "last_loss": losses[-1],
                    "bytes": dict(counter.bytes),
                    "calls": dict(counter.calls),
                }
            ),
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
