"""Names of framework variants: ``megatron-2022``, or with options ``megatron+bf16-gradients``.

A variant stands for a version or a published set of runs. What follows are settings of the job that
change what the framework does: what memory holds, what traffic carries, what is launched.
"""

from __future__ import annotations

from meshplan.record import record

__all__ = ["Switch", "split_variant", "with_options"]


@record
class Switch:
    """A setting of a job, and how a person turns it on.

    Attributes:
        name: what follows a variant and a plus sign, such as ``bf16-gradients``.
        framework: whose setting it is.
        flags: options of the framework, each with its values; none where it refuses the setting.
        cautions: codes of what to know before, ``switch.caution.<code>``.
        dense_only: the options turn it on for models without experts alone.
        source: where the options, or the refusal, stand.
    """

    name: str
    framework: str
    flags: tuple[str, ...]
    cautions: tuple[str, ...]
    dense_only: bool
    source: str

    def has_flags_for(self, *, experts: bool) -> bool:
        """Whether the framework has options for it, in models with experts or without."""
        return bool(self.flags) and not (experts and self.dense_only)


def split_variant(variant: str) -> tuple[str, tuple[str, ...]]:
    """The variant before the first ``+``, and the options after it."""
    name, *options = (part.strip() for part in variant.split("+"))
    return name, tuple(dict.fromkeys(options))


def with_options(variant: str, framework: str, options: tuple[str, ...]) -> str:
    """A variant, or the framework itself where none is named, with further options."""
    name, known = split_variant(variant)
    return "+".join([name or framework, *dict.fromkeys((*known, *options))]) if options else variant
