"""The tree of commands, and what holds for all of them: the first screen, pyproject.toml, usage errors on one line."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ..errors import ConfigurationError
from ..util.urls import mask_passwords
from ..version import __version__
from .config import LogLevel, defaults_from_pyproject, key_of, working_folder
from .loading import Entries, Entry, Group, group_of, help_text, pass_on
from .output import fail, say_error

#: Where a context notes that help was asked for.
_HELP = "sa_jobqueue.help"

#: What we say in place of the sentences about texts that are no numbers: pydantic's, or Click's with an older Typer.
_WHOLE, _NUMBER = "expected a whole number", "expected a number"
_EXPECTED = {"int_parsing": _WHOLE, "float_parsing": _NUMBER, "integer": _WHOLE, "float": _NUMBER}
_NO_NUMBER = re.compile(r"('.*') is not a valid (integer|float)(?: range)?$")

_RUN, _LOOK, _ACT, _SET_UP = "Run jobs", "Look", "Act on jobs", "Set up"

_BENCH = """\
Measure the queue on your own database: drain, steady, enqueue.

All is done in the schema sa_jobqueue_bench, which is made for it and dropped at the end, also on Ctrl-C. Your own jobs are
left alone, and so is a schema of that name that this command did not make. But it makes as much load as it can: do not run it
beside users.
"""
_SCHEDULE = """\
Jobs at set times: look at schedules, make, pause and run them.

A schedule says which job to enqueue, and when. Running workers enqueue it. Code declares schedules with registry.schedule(...).
"""
_WORKFLOW = """\
Graphs of jobs that wait for each other: look at them, cancel, retry and pause them.

Code makes them: session.add(Workflow(...)).
"""
_LIMITS = """\
How many jobs run at once, and how fast they start: of a queue, a task, or each key.

Limits hold over all workers, and a change at once. Code declares them with @task(limits=...) and registry.queue(...).
"""

#: All commands, in the order of the help.
COMMANDS: Entries = {
    "demo": Entry("trials:demo", _RUN),
    "work": Entry("work:work", _RUN, {"app": True, "log_level": LogLevel.INFO}),
    "enqueue": Entry("enqueue:enqueue", _RUN, {"app": True}),
    "list": Entry("jobs:list_jobs", _LOOK),
    "show": Entry("show:show", _LOOK),
    "why": Entry("show:why", _LOOK),
    "errors": Entry("jobs:errors", _LOOK),
    "stats": Entry("stats:stats", _LOOK),
    "top": Entry("top:top", _LOOK),
    "workers": Entry("stats:workers", _LOOK),
    "doctor": Entry("doctor:doctor", _LOOK, {"app": True}),
    "alive": Entry("alive:alive", _LOOK),
    "metrics": Entry("metrics:metrics", _LOOK, {"log_level": LogLevel.INFO}),
    "dashboard": Entry("dashboard:dashboard", _LOOK, {"app": True}),
    "retry": Entry("actions:retry", _ACT),
    "cancel": Entry("actions:cancel", _ACT),
    "discard": Entry("actions:discard", _ACT),
    "prune": Entry("actions:prune", _ACT),
    "release": Entry("actions:release", _ACT),
    "edit": Entry("actions:edit", _ACT),
    "copy": Entry("actions:copy", _ACT),
    "drain": Entry("stats:drain", _ACT),
    "pause": Entry("limits:pause_", _ACT),
    "resume": Entry("limits:resume_", _ACT),
    "migrate": Entry("database:migrate", _SET_UP),
    "grants": Entry("database:grants", _SET_UP),
    "bench": Group(
        _RUN,
        _BENCH,
        {name: Entry(f"trials:{name}", options={"schema": False}) for name in ("drain", "steady", "enqueue")},
    ),
    "schedule": Group(
        _ACT,
        _SCHEDULE,
        {
            "list": Entry("schedules:list_"),
            "next": Entry("schedules:next_"),
            "add": Entry("schedules:add", options={"app": True}),
            **{name: Entry(f"schedules:{name}") for name in ("pause", "resume", "run", "backfill", "remove")},
        },
    ),
    "workflow": Group(
        _ACT,
        _WORKFLOW,
        {
            "list": Entry("workflows:list_"),
            **{name: Entry(f"workflows:{name}") for name in ("show", "cancel", "retry", "pause", "resume")},
        },
    ),
    "limits": Group(
        _ACT,
        _LIMITS,
        {"list": Entry("limits:list_"), "set": Entry("limits:set_"), "remove": Entry("limits:remove")},
    ),
    "embedded": Group(
        _SET_UP,
        "The embedded PostgreSQL: status, stop, path.",
        {name: Entry(f"embedded:{name}", options={"database": False}) for name in ("status", "stop", "path")},
    ),
}


class Root(group_of(COMMANDS)):  # type: ignore[misc]
    """The root, whose usage errors are one line; unexpected errors keep their traceback, without passwords."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        ctx.meta[_HELP] = not {"-h", "--help"}.isdisjoint(args)
        return super().parse_args(ctx, args)

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
        if os.environ.get("COLUMNS") == "0":  # no width is known; Rich would show nothing at all
            del os.environ["COLUMNS"]
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has gone; Python must not complain at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except OSError as error:
            if error.errno != errno.ENOSPC or error.filename is not None:
                raise
            say_error(f"the output cannot be written: {error.strerror}")
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(2)
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            say_error(_usage_error(error))
            sys.exit(2)
        sys.exit(code if isinstance(code, int) else 0)


def _usage_error(error: Any) -> str:
    """A usage error of Click's, which Typer may have a copy of, with the value and where that was said."""
    context, option = getattr(error, "ctx", None), getattr(error, "param", None)
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    said = error.format_message().rstrip(".")
    if context is None or option is None or type(error).__name__ != "BadParameter":
        return f"{said}{hint}"
    source = getattr(context.get_parameter_source(option.name), "name", "")
    if source in {"ENVIRONMENT", "DEFAULT_MAP"}:
        variable = option.envvar
        place = variable if source == "ENVIRONMENT" else f"{key_of(option)} in [tool.sa_jobqueue] of pyproject.toml"
        said = f"Invalid value for {place}: {error.message.rstrip('.')}"
    elif getattr(option, "envvar", None):
        said = f"Invalid value for '{option.opts[0]}': {error.message.rstrip('.')}"
    said = said.replace("Value error, ", "", 1)  # pydantic's word, from Typer
    from pydantic import ValidationError

    unit = " of seconds" if option.metavar == "SECONDS" else ""
    if by_click := _NO_NUMBER.search(error.message.rstrip(".")):
        said = said.replace(by_click[0], f"{_EXPECTED[by_click[2]]}{unit}, not {by_click[1]}")
    elif isinstance(reason := error.__cause__, ValidationError) and not option.multiple:
        found = reason.errors()[0]
        expected = _EXPECTED.get(found["type"], found["msg"])
        unit = unit if found["type"] in _EXPECTED else ""
        said = said.replace(found["msg"], f"{expected}{unit}")
        given = repr(found["input"])
        said += "" if given in said else f", not {given}"
    return f"{said}{hint}"


app = typer.Typer(
    cls=Root,
    name="sa-jobqueue",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sa-jobqueue {__version__}")
        raise typer.Exit


_FIRST_SCREEN = """\
A job queue that is part of your SQLAlchemy application; PostgreSQL runs it.

    sa-jobqueue migrate                                      make the tables
    sa-jobqueue work --app shop.tasks --queue mail=10        run jobs
    sa-jobqueue enqueue shop.send_receipt '{"order_id": 7}'  make one by hand
    sa-jobqueue list --status failed --newer-than 2h         look
    sa-jobqueue retry --queue mail                           run failed ones again

    Options come first, then the environment (SA_JOBQUEUE_DATABASE_URL and so on), then \\[tool.sa_jobqueue] in
    pyproject.toml. Without a database URL, DATABASE_URL counts, and without that an embedded PostgreSQL is used.
"""


@app.callback(invoke_without_command=True, help=help_text(_FIRST_SCREEN))
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        return
    defaults: dict[str, Any] = {}
    try:
        defaults = defaults_from_pyproject(working_folder())
    except ConfigurationError as error:
        if not context.meta[_HELP]:  # help must work all the same
            fail(str(error))
    pass_on(context, defaults)


def run() -> None:
    """Run the command line."""
    # What is imported stays to the end. To search it for garbage, above all at the exit, took a quarter of the time of a short
    # command (0.76 s of CPU instead of 0.58 s, November 2026).
    gc.freeze()
    atexit.register(gc.freeze)  # also of what is loaded later
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed, as by `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for letters that its encoding does not have
    try:
        app(prog_name="sa-jobqueue")
    except Exception as error:  # a bug of ours: all of it, but no password
        sys.stderr.write(mask_passwords("".join(traceback.format_exception(error))))
        sys.exit(1)
