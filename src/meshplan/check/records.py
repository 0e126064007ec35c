"""What was read from config files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshplan.errors import UserError
from meshplan.space.plan import Framework

__all__ = ["Reading", "Setting", "Source", "joined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file as text.

    Attributes:
        name: as the person gave it.
        text: its contents.
    """

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value that a file gives.

    Attributes:
        value: the value, already in our words.
        where: file and line.
        spelled: name of the option or key in the file.
        soft: whether it is a default of a script, such as ``${NNODES:-1}``, which a run may
            override.
    """

    value: object
    where: str
    spelled: str
    soft: bool = False

    @property
    def place(self) -> str:
        """The option or key with its line; the line alone for what stands there unwritten."""
        return self.where if self.spelled == "-" else f"{self.spelled} ({self.where})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All that files say about a run.

    Attributes:
        framework: whose config it is.
        settings: plan and job fields (``tp``, ``micro_batch``, ``seq_len``, ...), ``num_gpus``,
            ``gpus_per_node`` and the accumulation ``num_micro_batches``.
        model: dimensions of the model by our names; empty when the files have none.
        unknown: options whose value only a run would show, such as ``$SLURM_NNODES``.
        uncounted: options that save memory which no plan counts.
        named: files that a command names and whose settings count, with their lines.
        function: function of a Python module that a command names.
    """

    framework: Framework
    settings: Mapping[str, Setting] = field(default_factory=dict)
    model: Mapping[str, Setting] = field(default_factory=dict)
    unknown: tuple[Setting, ...] = ()
    uncounted: tuple[str, ...] = ()
    named: tuple[Setting, ...] = ()
    function: str | None = None

    def get(self, name: str, default: object = None) -> object:
        """A value, or the default where no file gives one."""
        setting = self.settings.get(name)
        return default if setting is None else setting.value


def _gives_way(one: Setting, other: Setting) -> bool:
    """Whether a value is a default that another file overrides."""
    ranks = [2 if s.spelled == "-" else int(s.soft) for s in (one, other)]
    return ranks[0] > ranks[1]


def joined(readings: list[Reading]) -> Reading:
    """Put what several files say together.

    Raises:
        UserError: when two of them disagree.
    """
    first = readings[0]
    # the config of a framework says more about it than arguments of a script that many share
    own = [r for r in readings if r.framework is not Framework.ACCELERATE] or readings
    settings, model = dict(first.settings), dict(first.model)
    for reading in readings[1:]:
        for mine, theirs in ((settings, reading.settings), (model, reading.model)):
            for name, setting in theirs.items():
                known = mine.setdefault(name, setting)
                if _gives_way(known, setting):
                    mine[name] = setting
                elif known.value != setting.value and not _gives_way(setting, known):
                    raise UserError.of(
                        "check_contradiction",
                        where=setting.where,
                        value=setting.value,
                        option=setting.spelled,
                        other=known.place,
                        other_value=known.value,
                    )
    return Reading(
        framework=own[0].framework,
        settings=settings,
        model=model,
        unknown=tuple(u for r in readings for u in r.unknown),
        uncounted=tuple(dict.fromkeys(name for r in readings for name in r.uncounted)),
        named=tuple(n for r in readings for n in r.named),
    )
