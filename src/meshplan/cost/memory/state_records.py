"""What a stage holds between and during steps, per combination of plan fields."""

from __future__ import annotations

from meshplan.cost.memory.shapes import FloatArray
from meshplan.record import record

__all__ = ["Parameters", "StageStates"]


@record
class Parameters:
    """Parameters that one device holds before any sharding over data parallelism.

    Attributes:
        dense: blocks without routed experts.
        expert: routed experts.
        ends: embedding, head and what stands with them.
        trainable_dense: of ``dense`` and ``ends``, or the adapters on them, what is trained.
        trainable_expert: of ``expert``, or the adapters on them, what is trained.
        vectors: of ``trainable_dense`` what is no hidden matrix (embedding, head, norms).
    """

    dense: FloatArray
    expert: FloatArray
    ends: FloatArray
    trainable_dense: FloatArray
    trainable_expert: FloatArray
    vectors: FloatArray


@record
class StageStates:
    """Bytes of a stage that do not depend on the micro-batch; shape ``(num_combinations,)``.

    Attributes:
        parameters: counts before sharding.
        weights: stored weights on the device.
        weight_copies: copies in the job's low precision.
        gradients: buffer in which gradients are accumulated.
        unsharded_gradients: gradients that a framework which shards them accumulates whole, until
            the last micro-batch of a step.
        autograd_gradients: further gradients at the end of a backward pass.
        replica_buckets: communication buckets of a data-parallel wrapper.
        optimizer: master weights and moments on the device.
        step_gradients: 32-bit copy of the gradients for the update.
        optimizer_temporaries: of the update.
        gathered: units gathered for compute under ZeRO-3.
        gathered_at_loss: those of them that are there while the loss is computed.
        reduced: largest unit of gradients on its way through a collective.
        reduced_ends: gradients of embedding and head that wait for the end of the backward pass.
        offloaded: bytes that live in host memory instead.
        loading: the most the device holds while weights are loaded.
    """

    parameters: Parameters
    weights: FloatArray
    weight_copies: FloatArray
    gradients: FloatArray
    unsharded_gradients: FloatArray
    autograd_gradients: FloatArray
    replica_buckets: FloatArray
    optimizer: FloatArray
    step_gradients: FloatArray
    optimizer_temporaries: FloatArray
    gathered: FloatArray
    gathered_at_loss: FloatArray
    reduced: FloatArray
    reduced_ends: FloatArray
    offloaded: FloatArray
    loading: FloatArray
