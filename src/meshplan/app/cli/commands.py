"""Typer commands that speak the reader's language and load only when they are called.

What typer keeps private of its vendored click is touched in this module and nowhere else.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, cast

import typer
from typer._click import Command, Context, Parameter
from typer._click.exceptions import (
    BadArgumentUsage,
    BadOptionUsage,
    BadParameter,
    MissingParameter,
    NoSuchOption,
    UsageError,
)
from typer._click.formatting import HelpFormatter
from typer._click.shell_completion import CompletionItem
from typer._coercion import RuntimeParam
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from meshplan.app.cli.help import Entry, Panel, examples_of, render_help
from meshplan.app.cli.language import from_environment
from meshplan.errors import UserError
from meshplan.record import record
from meshplan.text import has, t

__all__ = ["VERBS", "Session", "VerbCommand", "VerbGroup", "build_app", "load_verb", "usage_error"]

VERBS = (
    "plan",
    "estimate",
    "compare",
    "explain",
    "emit",
    "check",
    "diagnose",
    "inspect",
    "quick",
    "learn",
    "list",
    "schema",
    "validate",
    "calibrate",
    "serve",
)


_SETTINGS = {"help_option_names": ["-h", "--help"]}


@record
class Session:
    """What a verb knows besides its own options.

    Attributes:
        lang: language of what is printed.
    """

    lang: str


def _lang(ctx: Context) -> str:
    session = ctx.find_object(Session)
    return session.lang if session else from_environment(os.environ)


def _with_words(items: list[CompletionItem], lang: str, prefix: str = "") -> list[CompletionItem]:
    """Put sentences in place of their codes in what a shell offers."""
    for item in items:
        code = prefix + (item.value if prefix else str(item.help))
        item.help = t(code, lang) if has(code, lang) else None
    return items


class _Text(RuntimeParam):
    """Text as it was typed: all that a verb takes is read by the service."""

    def _coerce_value(self, value: Any, param: Any, ctx: Context) -> Any:
        if isinstance(value, list | tuple):
            return [self._coerce_value(item, param, ctx) for item in value]
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise BadParameter(str(error.reason), ctx=ctx, param=param) from None
        return value


class _TextOnly(Command):
    """Takes text and flags without pydantic: typer would import it for nothing but these."""

    def get_params(self, ctx: Context) -> list[Parameter]:
        """All parameters, ``--help`` included."""
        params = super().get_params(ctx)
        for param in params:
            if isinstance(param, TyperArgument | TyperOption):
                described = param.type_descriptor
                if described.annotation in (str, bool, list[str]):
                    param._runtime_param = _Text(described.parameter_info, described.annotation)
        return params


class VerbCommand(_TextOnly, TyperCommand):
    """One verb; its help codes are looked up when help is asked for."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse, and refuse words that are too many."""
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            raise UserError.of("usage_extra_argument", where=str(self.name), value=" ".join(rest))
        return rest

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Offer options with what they are for."""
        return _with_words(super().shell_complete(ctx, incomplete), _lang(ctx))

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the help in the reader's language."""
        lang = _lang(ctx)
        arguments = [p for p in self.params if isinstance(p, TyperArgument)]
        usage = [ctx.command_path, *(_usage_name(p) for p in arguments)]
        usage.append(t("cli.options_metavar", lang))
        panels = [
            Panel(
                title=t("cli.panel.arguments", lang),
                entries=[Entry(name=_metavar(p), text=t(str(p.help), lang)) for p in arguments],
            ),
            *_option_panels(self.params, lang),
            _global_panel(lang),
        ]
        formatter.write(
            render_help(
                intro=t(f"cli.verb.{self.name}.intro", lang),
                usage=" ".join(usage),
                panels=panels,
                examples=examples_of(f"cli.verb.{self.name}.example", lang),
                lang=lang,
            )
            + "\n"
        )


class VerbGroup(_TextOnly, TyperGroup):
    """All verbs; a verb's module is imported when it is called."""

    def list_commands(self, ctx: Context) -> list[str]:
        """Names of the verbs, in the order in which people need them."""
        return list(VERBS)

    def get_command(self, ctx: Context, cmd_name: str) -> VerbCommand | None:
        """Import one verb."""
        return load_verb(cmd_name) if cmd_name in VERBS else None

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the verb that the first argument names."""
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            raise UserError.of("usage_no_such_verb", value=name, allowed=VERBS)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Offer verbs with what they are for."""
        offered = [CompletionItem(verb) for verb in VERBS if verb.startswith(incomplete)]
        return _with_words(offered, _lang(ctx), prefix="cli.verb.")

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the help in the reader's language without importing any verb."""
        lang = _lang(ctx)
        entries = [Entry(name=verb, text=t(f"cli.verb.{verb}", lang)) for verb in VERBS]
        usage = f"{ctx.command_path} {t('cli.verb_metavar', lang)} {t('cli.options_metavar', lang)}"
        panels = [
            Panel(title=t("cli.panel.verbs", lang), entries=entries),
            *_option_panels(self.params, lang),
            _global_panel(lang),
        ]
        formatter.write(
            render_help(
                intro=t("cli.intro", lang),
                usage=usage,
                panels=panels,
                examples=examples_of("cli.example", lang),
                lang=lang,
            )
            + "\n"
        )


def _metavar(param: TyperArgument) -> str:
    return str(param.metavar or param.name).upper()


def _usage_name(param: TyperArgument) -> str:
    name = _metavar(param) + ("..." if param.nargs != 1 else "")
    return name if param.required else f"[{name}]"


def _option_panels(params: list[Any], lang: str) -> list[Panel]:
    """Group options by the panel they name."""
    panels: dict[str, list[Entry]] = {}
    for param in params:
        if isinstance(param, TyperOption) and not param.hidden:
            names = ", ".join(sorted(param.opts, key=len))
            name = names if param.is_flag else f"{names} {str(param.metavar or '').strip()}"
            panel = param.rich_help_panel or "cli.panel.options"
            entry = Entry(name=name, text=t(_help_code(param), lang))
            panels.setdefault(panel, []).append(entry)
    return [Panel(title=t(code, lang), entries=entries) for code, entries in panels.items()]


def _help_code(param: TyperOption) -> str:
    """Typer's own options come with English help; ours with a code."""
    own = {
        "install_completion": "cli.option.install_completion",
        "show_completion": "cli.option.show_completion",
    }
    return own.get(str(param.name), str(param.help))


def _global_panel(lang: str) -> Panel:
    return Panel(
        title=t("cli.panel.global", lang),
        entries=[
            Entry(name="--lang en|zh", text=t("cli.option.lang", lang)),
            Entry(name="-h, --help", text=t("cli.option.help", lang)),
        ],
    )


def load_verb(name: str) -> VerbCommand:
    """Import the module of a verb and make its command."""
    module = importlib.import_module(f"meshplan.app.cli.verbs.{name}")
    function: Callable[..., int] = module.run
    app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=_SETTINGS)
    app.command(name=name, cls=VerbCommand)(function)
    return cast(VerbCommand, typer.main.get_command(app))


def build_app() -> VerbGroup:
    """Make the command that holds all verbs."""
    app = typer.Typer(
        cls=VerbGroup,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_SETTINGS,
    )

    @app.callback(cls=VerbGroup, invoke_without_command=True)
    def meshplan(
        ctx: typer.Context,
        version: bool = typer.Option(False, "--version", help="cli.option.version"),
    ) -> int:
        if version:
            from meshplan import __version__

            print(f"meshplan {__version__}")
        elif ctx.invoked_subcommand is None:
            print(ctx.get_help())
            return 2
        return 0

    return cast(VerbGroup, typer.main.get_command(app))


def usage_error(error: UsageError) -> UserError:
    """Say in our own words what typer's parser refused."""
    match error:
        case NoSuchOption():
            options = _option_names(error.ctx)
            close = error.possibilities or _close(error.option_name, options)
            code = "usage_no_such_option" if close else "usage_unknown_option"
            if not close and "--set" not in options:
                code = "usage_option_unknown_here"
            return UserError.of(code, value=error.option_name, allowed=close, verb=_path(error))
        case MissingParameter() if error.param is not None:
            option = error.param.param_type_name == "option"
            name = error.param.opts[0] if option else error.param.display_name_raw
            return UserError.of(
                "usage_missing_argument", where=name, allowed=_choices(error), verb=_path(error)
            )
        case BadOptionUsage() if "does not take" in error.message:
            return UserError.of("usage_takes_no_value", where=error.option_name)
        case BadOptionUsage():
            return UserError.of("usage_missing_value", where=error.option_name)
        case BadArgumentUsage():
            return UserError.of("usage_missing_argument", where=_path(error), verb=_path(error))
    return UserError.of("usage_bad_value", where=_path(error), value=error.format_message())


# Tables that say what an argument may be, by verb and argument.
_CHOICES = {
    ("list", "KIND"): ("meshplan.app.listing", "KINDS"),
    ("schema", "KIND"): ("meshplan.app.schema", "KINDS"),
    ("emit", "TARGET"): ("meshplan.emit.targets", "TARGETS"),
}


def _choices(error: MissingParameter) -> tuple[str, ...]:
    """What a missing argument may be, where that is a short list."""
    verb = error.ctx.info_name if error.ctx else None
    name = error.param.display_name_raw if error.param else ""
    place = _CHOICES.get((str(verb), name))
    return tuple(getattr(importlib.import_module(place[0]), place[1])) if place else ()


def _path(error: UsageError) -> str:
    return error.ctx.command_path if error.ctx else "meshplan"


def _option_names(ctx: Context | None) -> list[str]:
    params = ctx.command.params if ctx else []
    return [name for param in params for name in param.opts if name.startswith("--")]


def _close(name: str, options: list[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(name, options, n=3, cutoff=0.5)
