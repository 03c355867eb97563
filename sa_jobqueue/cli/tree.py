"""The tree of commands, with what they share: the first screen, pyproject.toml, usage errors on one line."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import re
import sys
import traceback
from typing import Annotated, Any

import typer

from ..errors import ConfigurationError
from ..util.urls import mask_passwords
from ..version import __version__
from .config import LogLevel, defaults_from_pyproject, key_of, working_folder
from .loading import Entries, Entry, Group, group_of, help_text, pass_on
from .output import fail, say_error

#: The key in a context's `meta` under which it is noted that help was requested.
_HELP = "sa_jobqueue.help"

#: Replaces the messages about texts that are no numbers: pydantic's, or Click's with an older Typer.
_WHOLE, _NUMBER = "expected a whole number", "expected a number"
_EXPECTED = {"int_parsing": _WHOLE, "float_parsing": _NUMBER, "integer": _WHOLE, "float": _NUMBER}
_NO_NUMBER = re.compile(r"('.*') is not a valid (integer|float)(?: range)?$")

_RUN, _INSPECT, _ACT, _SET_UP = "Run jobs", "Inspect", "Act on jobs", "Set up"

_BENCH = """\
Measure the queue on your own database: drain, steady, enqueue.

It works in the schema sa_jobqueue_bench, which it makes and drops at the end, also on Ctrl-C. It leaves your own jobs alone, and
a schema of that name that it did not make. But it puts as much load on the server as it can: do not run it on a database that
serves users.
"""
_SCHEDULE = """\
Jobs at set times: list, make, pause and run schedules.

A schedule states which job to enqueue, and when. Running workers enqueue it. Code declares schedules with registry.schedule(...).
"""
_WORKFLOW = """\
Graphs of jobs that wait for each other: show, cancel, retry and pause workflows.

Code makes workflows: session.add(Workflow(...)).
"""
_LIMITS = """\
Limits on how many jobs run at once and how fast they start: of a queue, a task, or each key.

Limits apply across all workers, and changes apply at once. Code declares limits with @task(limits=...) and registry.queue(...).
"""
_SECRETS = """\
Keys of secret arguments: make a key, and encrypt rows with a new key.

Code marks secret arguments with Secret(), and has the keys: default_registry.secrets = SecretKeys(...).
"""
_WORKERS = """\
The worker processes: list them, and set the slots of a running worker.

Without a subcommand, as in `sa-jobqueue workers --json`, it lists.
"""


def _entries(module: str, *names: str, **options: bool) -> dict[str, Entry]:
    """Commands whose functions have the commands' names."""
    return {name: Entry(f"{module}:{name}", options=options) for name in names}


#: All commands, in the order of the help.
COMMANDS: Entries = {
    "demo": Entry("trials:demo", _RUN),
    "work": Entry("work:work", _RUN, {"app": True, "log_level": LogLevel.INFO}),
    "enqueue": Entry("enqueue:enqueue", _RUN, {"app": True}),
    "signal": Entry("enqueue:signal", _RUN),
    "list": Entry("jobs:list_jobs", _INSPECT),
    "show": Entry("show:show", _INSPECT),
    "why": Entry("show:why", _INSPECT),
    "errors": Entry("jobs:errors", _INSPECT),
    "stats": Entry("stats:stats", _INSPECT),
    "top": Entry("top:top", _INSPECT),
    "workers": Group(
        _INSPECT, _WORKERS, {"list": Entry("stats:workers"), "set": Entry("stats:set_slots_")}, default="list"
    ),
    "doctor": Entry("doctor:doctor", _INSPECT, {"app": True}),
    "alive": Entry("alive:alive", _INSPECT),
    "metrics": Entry("metrics:metrics", _INSPECT, {"log_level": LogLevel.INFO}),
    "dashboard": Entry("dashboard:dashboard", _INSPECT, {"app": True}),
    "retry": Entry("actions:retry", _ACT),
    "cancel": Entry("actions:cancel", _ACT),
    "discard": Entry("actions:discard", _ACT),
    "prune": Entry("actions:prune", _ACT),
    "release": Entry("actions:release", _ACT),
    "edit": Entry("actions:edit", _ACT),
    "copy": Entry("actions:copy", _ACT),
    "fork": Entry("actions:fork", _ACT),
    "drain": Entry("stats:drain", _ACT),
    "pause": Entry("limits:pause_", _ACT),
    "resume": Entry("limits:resume_", _ACT),
    "migrate": Entry("database:migrate", _SET_UP),
    "grants": Entry("database:grants", _SET_UP),
    "bench": Group(_RUN, _BENCH, _entries("trials", "drain", "steady", "enqueue", schema=False)),
    "schedule": Group(
        _ACT,
        _SCHEDULE,
        {
            "list": Entry("schedules:list_"),
            "next": Entry("schedules:next_"),
            "add": Entry("schedules:add", options={"app": True}),
            **_entries("schedules", "pause", "resume", "run", "backfill", "remove"),
        },
    ),
    "workflow": Group(
        _ACT,
        _WORKFLOW,
        {"list": Entry("workflows:list_"), **_entries("workflows", "show", "cancel", "retry", "pause", "resume")},
    ),
    "limits": Group(
        _ACT,
        _LIMITS,
        {
            "list": Entry("limits:list_"),
            "set": Entry("limits:set_"),
            **_entries("limits", "remove"),
            "open": Entry("limits:open_"),
            **_entries("limits", "close"),
        },
    ),
    "secrets": Group(
        _SET_UP,
        _SECRETS,
        {
            "new-key": Entry("secrets:new_key_", options={"database": False}),
            "rotate": Entry("secrets:rotate", options={"app": True}),
        },
    ),
    "embedded": Group(
        _SET_UP,
        "The embedded PostgreSQL: status, stop, path.",
        _entries("embedded", "status", "stop", "path", database=False),
    ),
}


class Root(group_of(COMMANDS)):  # type: ignore[misc]
    """The root. Usage errors are one line; unexpected errors keep their traceback, without passwords."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        ctx.meta[_HELP] = not {"-h", "--help"}.isdisjoint(args)
        return super().parse_args(ctx, args)

    def main(self, *args: Any, standalone_mode: bool = True, **options: Any) -> Any:
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **options)
        if os.environ.get("COLUMNS") == "0":  # the width is unknown; Rich would show nothing at all
            del os.environ["COLUMNS"]
        try:
            code = super().main(*args, standalone_mode=False, **options)
            sys.stdout.flush()
        except OSError as error:
            broken = isinstance(error, BrokenPipeError)  # the reader is gone
            if not broken and (error.errno != errno.ENOSPC or error.filename is not None):
                raise
            if not broken:
                say_error(f"the output cannot be written: {error.strerror}")
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that Python's last flush does not fail
            sys.exit(1 if broken else 2)
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            say_error(_usage_error(error))
            sys.exit(2)
        sys.exit(code if isinstance(code, int) else 0)


def _usage_error(error: Any) -> str:
    """Describe a usage error of Click, or of Typer's copy of Click, with the value and its source."""
    context, option = getattr(error, "ctx", None), getattr(error, "param", None)
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    text = error.format_message().rstrip(".")
    if context is None or option is None or type(error).__name__ != "BadParameter":
        return f"{text}{hint}"
    message = error.message.rstrip(".")
    source = getattr(context.get_parameter_source(option.name), "name", "")
    if source in {"ENVIRONMENT", "DEFAULT_MAP"}:
        key = f"{key_of(option)} in [tool.sa_jobqueue] of pyproject.toml"
        text = f"Invalid value for {option.envvar if source == 'ENVIRONMENT' else key}: {message}"
    elif getattr(option, "envvar", None):
        text = f"Invalid value for '{option.opts[0]}': {message}"
    text = text.replace("Value error, ", "", 1)  # pydantic's word, from Typer
    from pydantic import ValidationError

    unit = " of seconds" if option.metavar == "SECONDS" else ""
    if by_click := _NO_NUMBER.search(message):
        text = text.replace(by_click[0], f"{_EXPECTED[by_click[2]]}{unit}, not {by_click[1]}")
    elif isinstance(reason := error.__cause__, ValidationError) and not option.multiple:
        details = reason.errors()[0]
        expected = f"{_EXPECTED[details['type']]}{unit}" if details["type"] in _EXPECTED else details["msg"]
        text = text.replace(details["msg"], expected)
        value = repr(details["input"])
        text += "" if value in text else f", not {value}"
    return f"{text}{hint}"


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
    sa-jobqueue enqueue shop.send_receipt '{"order_id": 7}'  enqueue a job by hand
    sa-jobqueue list --status failed --newer-than 2h         list jobs
    sa-jobqueue retry --queue mail                           run failed jobs again

    Options override the environment (SA_JOBQUEUE_DATABASE_URL and so on), which overrides \\[tool.sa_jobqueue] in
    pyproject.toml. The default database is DATABASE_URL in the environment, or else an embedded PostgreSQL.
"""


@app.callback(invoke_without_command=True, help=help_text(_FIRST_SCREEN))
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        return
    defaults: dict[str, Any] = {}
    try:
        defaults = defaults_from_pyproject(working_folder())
    except ConfigurationError as error:
        if not context.meta[_HELP]:  # help must work in any case
            fail(str(error))
    pass_on(context, defaults)


def run() -> None:
    """Run the command line."""
    # Imported modules stay to the end. Searching them for garbage, above all at the exit, took a quarter of the time of a short
    # command (0.76 s of CPU instead of 0.58 s, November 2026).
    atexit.register(gc.freeze)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed, as by `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for letters that the encoding lacks
    try:
        app(prog_name="sa-jobqueue")
    except Exception as error:  # a bug of ours: print all of it, but no password
        sys.stderr.write(mask_passwords("".join(traceback.format_exception(error))))
        sys.exit(1)
