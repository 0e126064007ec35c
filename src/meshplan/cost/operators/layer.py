"""All operators of one block: norms, mixer, feed-forward network, residuals and dropout."""

from __future__ import annotations

from meshplan.cost.operators.adapters import with_adapters
from meshplan.cost.operators.elementwise import dropout, norm, residual
from meshplan.cost.operators.feed_forward import feed_forward_operators
from meshplan.cost.operators.mixers import mixer_operators
from meshplan.cost.operators.records import Gemm, Number, Operator, Shapes
from meshplan.cost.recompute import network_norm_recompute
from meshplan.inputs.model import Layer
from meshplan.space.plan import Recompute

__all__ = ["layer_operators"]


def layer_operators(layer: Layer, shapes: Shapes) -> list[Operator]:
    """List the operators of one block in the order in which they run forward.

    Weights of a block that no other field describes are low-rank side paths, compressors and
    mixers of residual streams: a product of every token with all of them.
    """
    stream = shapes.tokens_split * float(shapes.hidden)
    operators: list[Operator] = [norm("norm", stream, rerun=module) for module in _norms(layer)]
    for mixer in layer.mixers:
        found = mixer_operators(mixer, shapes)
        operators.extend(with_adapters(found, shapes.job, part="attention"))
        operators.extend(_join(shapes, stream))
    if layer.ffn is not None:
        found = feed_forward_operators(layer.ffn, shapes)
        operators.extend(with_adapters(found, shapes.job, part="mlp"))
        operators.extend(_join(shapes, stream))
    if layer.extra_parameters >= shapes.hidden:
        operators.append(
            Gemm(
                name="side_projection",
                m=shapes.tokens_split,
                n=layer.extra_parameters / float(shapes.hidden),
                k=float(shapes.hidden),
                weight_gradient=shapes.trained,
            )
        )
    return operators


def _norms(layer: Layer) -> list[Recompute]:
    """What computes each norm of a block again: those before the branches, then those behind.

    Recompute of norms is counted for all that stand before a branch, as if each were a module.
    """
    before = [Recompute.NORM] if layer.mixers else []
    if layer.ffn is not None and not (layer.mixers and layer.num_norms == 1):
        before.append(Recompute.NORM | network_norm_recompute(layer))
    return [*before, *[Recompute.NONE] * (layer.num_norms - len(before))][: layer.num_norms]


def _join(shapes: Shapes, stream: Number) -> list[Operator]:
    """Add a branch to the residual stream, with dropout where the job has it."""
    if not shapes.job.dropout:
        return [residual(stream)]
    return [dropout(stream, fused=shapes.fused_dropout), residual(stream)]
