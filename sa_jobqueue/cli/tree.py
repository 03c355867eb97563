"""The tree of commands, and what holds for all of them: the first screen, pyproject.toml, usage errors on one line."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.urls import mask_passwords
from sa_jobqueue.version import __version__

from .common import LogLevel, command, fail, say_error
from .config import defaults_from_pyproject

__all__ = ["app", "main"]

_RUN, _LOOK, _ACT, _SET_UP = "Run", "Look", "Act on jobs", "Set up"


class Commands(TyperGroup):
    """A group whose usage errors are one line; unexpected errors keep their traceback, without passwords."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except Exception as error:
            if (message := getattr(error, "format_message", None)) is None:
                raise
            context = getattr(error, "ctx", None)  # a usage error of Click's, which Typer may have a copy of
            hint = f" (see {context.command_path} --help)" if context is not None else ""
            say_error(f"{message().rstrip('.')}{hint}")
            sys.exit(2)
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    cls=Commands,
    name="sa-jobqueue",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sa-jobqueue {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """A job queue that is part of your SQLAlchemy application; PostgreSQL runs it."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        return
    try:
        context.default_map = defaults_from_pyproject(context.command, Path.cwd())
    except ConfigurationError as error:
        if {"-h", "--help"}.isdisjoint(context.args):  # help is to be had all the same
            fail(str(error))


def _register(module: str, name: str, panel: str, **options: Any) -> None:
    """Add the command `name`, a function of that name in `module`; a module that is not there is left out."""
    full_name = f"{__package__}.{module}"
    if importlib.util.find_spec(full_name) is None:
        return
    handler: Callable[..., None] = getattr(importlib.import_module(full_name), name)
    app.command(name, rich_help_panel=panel)(command(handler, **options))


_register("work", "work", _RUN, app=True, log_level=LogLevel.INFO)
_register("demo", "demo", _RUN)


def main() -> None:
    """Run the command line."""
    try:
        app(prog_name="sa-jobqueue")
    except Exception as error:  # a bug of ours: all of it, but no password
        sys.stderr.write(mask_passwords("".join(traceback.format_exception(error))))
        sys.exit(1)
