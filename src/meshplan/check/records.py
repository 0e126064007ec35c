"""What was read from config files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from meshplan.errors import UserError
from meshplan.record import record
from meshplan.space.plan import Framework

__all__ = ["ForeignKey", "Reading", "Setting", "Source", "joined"]


@record
class Source:
    """A file as text.

    Attributes:
        name: as the person gave it.
        text: its contents.
        called: name of the file that it would be, where another file carries it.
    """

    name: str
    text: str
    called: str = ""


@record
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


@record
class ForeignKey:
    """A key or an option that a framework does not have.

    Attributes:
        key: as the file has it, with its section.
        where: file and line.
        nearest: the one that it may stand for; empty where none is alike.
        framework: whose keys count, with the version; empty for a variable of a script.
        refused: whether it refuses to start with one; else it never looks at it.
        source: where that was read.
    """

    key: str
    where: str
    nearest: str
    framework: str
    refused: bool
    source: str


@record
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
        config: whose format it is, where its plans are judged as another framework's.
        defaults: keys that no file gives, with what the framework takes.
        unmodelled: values that no plan says, for which the nearest is predicted.
        foreign: keys that the framework does not have.
    """

    framework: Framework
    settings: Mapping[str, Setting] = field(default_factory=dict)
    model: Mapping[str, Setting] = field(default_factory=dict)
    unknown: tuple[Setting, ...] = ()
    uncounted: tuple[str, ...] = ()
    named: tuple[Setting, ...] = ()
    function: str | None = None
    config: str = ""
    defaults: tuple[str, ...] = ()
    unmodelled: tuple[Setting, ...] = ()
    foreign: tuple[ForeignKey, ...] = ()

    def get(self, name: str, default: object = None) -> object:
        """A value, or the default where no file gives one."""
        setting = self.settings.get(name)
        return default if setting is None else setting.value


def _gives_way(one: Setting, other: Setting) -> bool:
    """Whether a value is a default that another file overrides."""
    ranks = [2 if s.spelled == "-" else int(s.soft) for s in (one, other)]
    return ranks[0] > ranks[1]


def _contradiction(known: Setting, other: Setting) -> UserError:
    return UserError.of(
        "check_contradiction",
        where=other.where,
        value=other.value,
        option=other.spelled,
        other=known.place,
        other_value=known.value,
    )


def joined(readings: list[Reading], around: Sequence[Mapping[str, Setting]] = ()) -> Reading:
    """Put what several files say together.

    Args:
        readings: the files that describe the run.
        around: what the jobs around them ask for.

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
                    raise _contradiction(known, setting)
    asked = {name: setting for asks in around for name, setting in asks.items()}
    for name, setting in asked.items():
        known = settings.get(name, setting)
        if known.value != setting.value and not known.soft:
            raise _contradiction(known, setting)
        settings[name] = known if known.value == setting.value else setting
    firm = {name for name, setting in asked.items() if not setting.soft}
    return Reading(
        framework=own[0].framework,
        settings=settings,
        model=model,
        unknown=tuple(u for r in readings for u in r.unknown if u.value not in firm),
        uncounted=tuple(dict.fromkeys(name for r in readings for name in r.uncounted)),
        named=tuple(n for r in readings for n in r.named),
        config=own[0].config,
        foreign=tuple(key for r in readings for key in r.foreign),
    )
