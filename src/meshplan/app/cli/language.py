"""The reader's language, from the command line or the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshplan.errors import UserError
from meshplan.text import LANGUAGES

__all__ = ["from_environment", "take_language"]

_OPTION = "--lang"


def from_environment(environ: Mapping[str, str]) -> str:
    """Return the language that the environment asks for, English when it asks for none we have.

    As POSIX has it, the first of ``LC_ALL``, ``LC_MESSAGES`` and ``LANG`` that is set decides.
    """
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if value := environ.get(name):
            return _language(value) or "en"
    return "en"


def _language(value: str) -> str | None:
    """The language of a locale such as ``zh``, ``zh-CN`` or ``zh_CN.UTF-8``, if we have it."""
    lang = value.replace("-", "_").split("_")[0].split(".")[0].lower()
    return lang if lang in LANGUAGES else None


def take_language(
    argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[str, list[str], UserError | None]:
    """Take ``--lang`` out of the arguments, wherever it stands.

    Returns:
        The language, the other arguments, and what is wrong with the option, if anything: the
        complaint has to wait until its language is known.
    """
    lang = from_environment(environ)
    rest: list[str] = []
    problem: UserError | None = None
    words = iter(argv)
    for word in words:
        if word == "--":
            rest += [word, *words]
            break
        if word != _OPTION and not word.startswith(_OPTION + "="):
            rest.append(word)
            continue
        value = word.partition("=")[2] if "=" in word else next(words, None)
        if value is not None and (known := _language(value)):
            lang = known
        elif value is None:
            problem = UserError.of("usage_missing_value", where=_OPTION, allowed=LANGUAGES)
        else:
            problem = UserError.of("usage_bad_value", where=_OPTION, value=value, allowed=LANGUAGES)
    return lang, rest, problem
