"""Commands that are loaded when they are called, because importing all of them would take 0.4 s at each call.

    COMMANDS = {"list": Entry("jobs:list_jobs", "Inspect"), "limits": Group("Act on jobs", "Limits on ...", {...})}
    app = typer.Typer(cls=group_of(COMMANDS))

The names come from these entries, and the first line of each help from `table`, so that the help of a group and shell
completion load no command.
"""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, get_type_hints

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from ..util.log import one_line
from .config import Config, LogLevel, Options, key_of, settings_of
from .output import plain_errors, set_up_logging
from .table import FIRST_LINES


def command(
    handler: Callable[..., None],
    /,
    *,
    app: bool = False,
    database: bool = True,
    schema: bool = True,
    log_level: LogLevel = LogLevel.WARNING,
) -> Callable[..., None]:
    """Make a Typer command of `handler`.

    `app`, `database`, `schema`: whether it takes `--app`, a database, and a schema. `log_level`: the default of `--log-level`.
    Errors become one line and exit code 2.
    """
    taken = {"app": app, "database_url": database, "schema": database and schema}
    omitted = {option for option, is_taken in taken.items() if not is_taken}
    hints = get_type_hints(handler, include_extras=True)
    bundles: dict[str, list[str]] = {}
    own: list[inspect.Parameter] = []
    shared: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(handler).parameters.items():
        if not (isinstance(hints[name], type) and issubclass(hints[name], Options)):
            own.append(_option(name, hints[name], parameter.default))
            continue
        options = hints[name].declared()
        bundles[name] = [option for option in options if option not in omitted]
        for option in bundles[name]:
            kind, default = options[option]
            default = log_level if option == "log_level" else default
            (shared if hints[name] is Config else own).append(_option(option, kind, default))
    parameters = [*own, *shared]

    @functools.wraps(handler)
    def run(**given: Any) -> None:
        values = {name: {option: given.pop(option) for option in options} for name, options in bundles.items()}
        with plain_errors(debug=any(options.get("debug") for options in values.values())):
            arguments = {name: hints[name].from_options(**options) for name, options in values.items()}
            for argument in arguments.values():
                if isinstance(argument, Config):
                    set_up_logging(argument.log_level)
            handler(**arguments, **given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = help_text(handler.__doc__ or "")
    return run


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def help_text(docstring: str) -> str:
    """A docstring as Typer's help: prose is one line per paragraph, to be wrapped; examples keep their lines."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    return "\n\n".join(f"\b\n{text}" if text.startswith("sa-jobqueue ") else one_line(text) for text in paragraphs)


Entries = Mapping[str, "Entry | Group"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A command: its function, as "module:function" of this package; its heading in the help; its arguments of `command`."""

    handler: str
    panel: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Group:
    """A command with subcommands."""

    panel: str
    help: str
    commands: Entries
    default: str | None = None
    """The subcommand that runs if the user names none. None: the help is shown."""


class _Flags:
    """Flags are shown without a type: `--json <bool>` would read as if it took a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        options: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for option in options:
            if getattr(option, "is_flag", False) and option.metavar is None:
                option.metavar = ""
        return options


class Command(_Flags, TyperCommand):
    """A command."""


class Commands(_Flags, TyperGroup):
    """A group that loads a command when it is called; `commands` loads each item at its first access."""

    path: ClassVar[tuple[str, ...]]
    entries: ClassVar[Entries]
    default: ClassVar[str | None] = None

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Loaded(self.path, self.entries)  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command for help and completion, which cannot be run."""
        if (entry := self.entries.get(cmd_name)) is None:
            return None
        first_line = FIRST_LINES[" ".join((*self.path, cmd_name))]
        return Command(name=cmd_name, help=first_line, rich_help_panel=entry.panel, rich_markup_mode="rich")

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if self.default is not None and (not args or args[0] not in {*self.entries, "-h", "--help"}):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, shown, rest = super().resolve_command(ctx, args)
        return name, None if shown is None else self.commands[str(shown.name)], rest


class _Loaded(Mapping[str, Any]):
    def __init__(self, path: tuple[str, ...], entries: Entries) -> None:
        self._path, self._entries = path, entries
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load((*self._path, name), self._entries[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def group_of(entries: Entries, *path: str, default: str | None = None) -> type[Commands]:
    """The class of a group with these commands. `path`: its name; empty for the root. `default`: as in `Group`."""
    return type("Commands", (Commands,), {"entries": entries, "path": path, "default": default})


def pass_on(context: typer.Context, defaults: Mapping[str, Any]) -> None:
    """Pass defaults to the command that is called: the values of its settings, or all defaults if it is a group."""
    called = context.command.commands[context.invoked_subcommand]  # type: ignore[attr-defined]
    settings = set(defaults) if isinstance(called, Commands) else {key_of(option) for option in settings_of(called)}
    context.default_map = {str(called.name): {key: value for key, value in defaults.items() if key in settings}}


def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    else:
        pass_on(context, context.default_map or {})


def _load(path: tuple[str, ...], entry: Entry | Group) -> Any:
    """A command, or a group without its commands, as Typer makes it."""
    name = path[-1]
    shared: dict[str, Any] = {"add_completion": False, "rich_markup_mode": "rich"}
    if isinstance(entry, Entry):
        maker = typer.Typer(**shared)
        maker.command(name, cls=Command, rich_help_panel=entry.panel)(command(_handler(entry), **entry.options))
    else:
        maker = typer.Typer(
            name=name, cls=group_of(entry.commands, *path, default=entry.default), callback=_show_help, invoke_without_command=True,
            help=help_text(entry.help), **shared,
        )  # fmt: skip
    return typer.main.get_command(maker)


def _handler(entry: Entry) -> Callable[..., None]:
    module, _, function = entry.handler.partition(":")
    # Imported modules stay; searching them for garbage meanwhile took a tenth of the time, and later as much (November 2026).
    collects = gc.isenabled()
    gc.disable()
    try:
        handler: Callable[..., None] = getattr(import_module(f".{module}", __package__), function)
    finally:
        gc.freeze()
        if collects:
            gc.enable()
    return handler
