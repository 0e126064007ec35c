"""Rules that several frameworks enforce, each at a place of its own.

A table of a framework names such a rule and its source; what it says stands here once.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshplan.record import record
from meshplan.space.facts import Facts
from meshplan.space.plan import Framework
from meshplan.space.rules import predicates
from meshplan.space.rules.predicates import only, only_facts
from meshplan.space.rules.rule import Predicate, Rule

__all__ = ["RuleMaker"]


@record(kw_only=False)
class _Shape:
    """What a rule says, apart from who enforces it; see :class:`Rule` for the fields."""

    axis: str
    reads: str
    legal: Predicate
    numbers: str = ""


_SHAPES: Mapping[str, _Shape] = {
    "tp_divides_heads": _Shape("tp", "tp", predicates.tp_divides_heads, "num_heads"),
    "tp_divides_kv_heads": _Shape("tp", "tp", predicates.tp_divides_kv_heads, "num_kv_heads"),
    "tp_divides_ffn": _Shape("tp", "tp", predicates.tp_divides_ffn, "ffn_hidden shared_ffn_hidden"),
    "tp_splits_recurrence": _Shape("tp", "tp", predicates.tp_splits_recurrence),
    "quantized_weights_are_whole": _Shape("tp", "tp pp", predicates.quantized_weights_are_whole),
    "no_sequence_parallelism": _Shape("sp", "sp", predicates.no_sequence_parallelism),
    "sp_needs_tp": _Shape("sp", "tp sp", predicates.sp_needs_tp),
    "sp_splits_sequence": _Shape("tp", "tp cp sp", predicates.sp_splits_sequence, "seq_len"),
    "ring_splits_sequence": _Shape("cp", "cp", predicates.ring_splits_sequence, "seq_len"),
    "cp_splits_recurrence": _Shape("cp", "cp", predicates.cp_splits_recurrence),
    "stored_scores_without_cp": _Shape("cp", "cp", predicates.stored_scores_without_cp),
    "all_to_all_shares_kv_heads": _Shape(
        "cp", "cp cp_comm", predicates.all_to_all_shares_kv_heads, "num_heads num_kv_heads"
    ),
    "experts_divide_over_ep": _Shape("ep", "ep", predicates.experts_divide_over_ep, "num_experts"),
    "no_expert_parallelism": _Shape("ep", "ep", only("ep", 1)),
    "etp_is_one": _Shape("etp", "etp", only("etp", 1)),
    "etp_divides_expert_ffn": _Shape(
        "etp", "etp", predicates.etp_divides_expert_ffn, "expert_ffn_hidden"
    ),
    "sharded_gradients_without_pipeline": _Shape(
        "zero", "pp zero", predicates.sharded_gradients_without_pipeline
    ),
    "no_replicas": _Shape("dp_replicate", "dp_replicate", only("dp_replicate", 1)),
    "recompute_covers_all_layers": _Shape(
        "recompute_layers", "recompute_layers", only("recompute_layers", 0)
    ),
    "offload_layers_exist": _Shape("offload_layers", "offload_layers", only("offload_layers", 0)),
    "offload_needs_shards": _Shape("zero", "zero offload", predicates.policy_needs_shards),
}


@record(kw_only=False)
class RuleMaker:
    """Makes the rules of one framework.

    Attributes:
        framework: whose rules.
        version: version that was read.
    """

    framework: Framework
    version: str

    def __call__(
        self, code: str, *, axis: str, reads: str, legal: Predicate, source: str, numbers: str = ""
    ) -> Rule:
        """Make a rule of this framework's own."""
        return Rule(
            code=code,
            frameworks=(self.framework,),
            version=self.version,
            source=source,
            reads=tuple(reads.split()),
            axis=axis,
            legal=legal,
            numbers=tuple(numbers.split()),
        )

    def shared(self, code: str, *, source: str) -> Rule:
        """Make a rule that other frameworks have too."""
        shape = _SHAPES[code]
        return self(
            code,
            axis=shape.axis,
            reads=shape.reads,
            legal=shape.legal,
            numbers=shape.numbers,
            source=source,
        )

    def offers(self, name: str, *values: int | str, source: str) -> Rule:
        """Make the rule that a plan field, or a choice of the job, is one that there is."""
        if name in Facts.__dataclass_fields__:
            choices = [str(value) for value in values]
            return self(
                f"{name}_exists",
                axis="framework",
                reads="",
                legal=only_facts(name, *choices),
                numbers=name,
                source=source,
            )
        codes = [int(value) for value in values]
        if name == "cp_comm":
            return self(
                "cp_comm_exists",
                axis="cp_comm",
                reads="cp cp_comm",
                legal=predicates.cp_comm_is(*codes),
                source=source,
            )
        return self(
            f"{name}_exists", axis=name, reads=name, legal=only(name, *codes), source=source
        )
