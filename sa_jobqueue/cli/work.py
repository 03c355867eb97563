"""The command `work`: serve queues until a signal comes, in this process or in several under a supervisor.

sa-jobqueue work --app shop.tasks --queue mail=10 --queue default=50 --processes 2
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from functools import partial
from time import monotonic
from typing import Annotated, Any, ClassVar, Self, get_args, get_type_hints

import typer
from sqlalchemy import URL

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.log import get_logger
from sa_jobqueue.migrations import check_schema
from sa_jobqueue.settings import WorkerSettings
from sa_jobqueue.urls import database_url
from sa_jobqueue.worker.garbage import search_less
from sa_jobqueue.worker.supervisor import CANNOT_WORK, Supervisor, drain_with_supervisor
from sa_jobqueue.worker.worker import Worker

from .common import database, load_registry, open_engine
from .config import PREFIX, Config
from .logs import LogFormat, set_log_format

__all__ = ["WorkOptions", "work"]

logger = get_logger(__name__)

_SETTINGS = WorkerSettings()
#: Slots of a queue that is named without a number.
_SLOTS = 10
#: Threads that handlers left behind get this many seconds before the process ends without them.
_LAST_THREADS = 1.0
_UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30}


def _option(*names: str, **said: Any) -> partial[Any]:
    """An option that may be said by the environment, too; `_declared` knows the variable, by the field's name."""
    return partial(typer.Option, *names, **said)


_queues, _pace, _waking, _processes = (
    partial(_option, rich_help_panel=panel) for panel in ("Queues", "Pace", "Waking up", "Processes")
)
_seconds = partial(_pace, metavar="SECONDS")


@dataclass(frozen=True)
class WorkOptions:
    """What `work` is told. Each field is an option; those that `WorkerSettings` has by the same name become settings."""

    options: ClassVar[Mapping[str, tuple[Any, Any]]]

    queue: Annotated[
        list[str],
        _queues(
            metavar="NAME=N",
            help=f"Serve this queue with N slots in each process; NAME alone: {_SLOTS} slots. May be repeated.",
        ),
    ] = field(default_factory=lambda: ["default=10"])
    processes: Annotated[
        int,
        _processes(
            min=1, max=256, help="Run so many worker processes under a supervisor, which starts a dead one again."
        ),
    ] = 1
    max_jobs: Annotated[
        int | None, _processes(min=1, help="Start a worker process anew after so many jobs.", show_default=False)
    ] = None
    max_memory: Annotated[
        str | None,
        _processes(
            metavar="SIZE",
            help="Start a worker process anew above so much resident memory: 500M, 2G; a plain number is MB.",
            show_default=False,
        ),
    ] = None
    pin: Annotated[
        bool,
        _processes(
            "--pin",
            help="Keep each worker process on one processor core, of those this command may use. For def handlers that "
            "wait for the database most of the time; not for those that compute without Python's lock.",
        ),
    ] = False
    drain: Annotated[bool, typer.Option("--drain", help="End when nothing is due any more.")] = False
    lease: Annotated[
        float, _seconds(help="How long a claim holds without renewal: after a crash its jobs wait this long.")
    ] = _SETTINGS.lease
    grace: Annotated[
        float, _seconds(help="After the first SIGTERM or Ctrl-C, the time that running jobs have to finish.")
    ] = _SETTINGS.grace
    buffer: Annotated[
        int, _pace(help="Most jobs of a queue to claim ahead of a free slot, if they finish fast enough. 0: none.")
    ] = _SETTINGS.buffer
    max_rescues: Annotated[
        int, _pace(help="A job whose worker died, or left while it ran, this many times is failed.")
    ] = _SETTINGS.max_rescues
    session_idle_timeout: Annotated[
        float | None,
        _seconds(help="The longest that a handler's transaction may sit idle before the server ends it."),
    ] = None
    poll: Annotated[float, _waking(metavar="SECONDS", help="The longest time between two looks at an idle queue.")] = (
        _SETTINGS.poll
    )
    listen: Annotated[bool, _waking(help="Be woken by new jobs, on a connection for that alone.")] = True
    listen_url: Annotated[
        str | None,
        _waking(
            metavar="URL",
            help="A direct URL to listen on, where --database-url leads to a pooler.",
            show_default=False,
        ),
    ] = None
    pooled: Annotated[
        bool, _waking("--pooled", help="The database is behind a pooler in transaction mode (PgBouncer).")
    ] = False
    log_format: Annotated[LogFormat, _option(help="One line of text, or one JSON object, per event.")] = LogFormat.TEXT
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False
    tried_out: Annotated[bool, typer.Option("--tried-out", hidden=True)] = False

    @classmethod
    def from_options(cls, **given: Any) -> Self:
        """From what Typer found."""
        return cls(**given)

    def settings(self) -> WorkerSettings:
        """Those of the options that are settings; raises ConfigurationError."""
        names = {one.name for one in fields(WorkerSettings)} & {one.name for one in fields(self)}
        return WorkerSettings(**{name: getattr(self, name) for name in names})


def _declared(options: type[WorkOptions]) -> dict[str, tuple[Any, Any]]:
    """The fields as Typer takes options; the environment variable of an `_option` has the field's name."""
    hints = get_type_hints(options, include_extras=True)

    def declared(one: Field[Any]) -> tuple[Any, Any]:
        kind, option = get_args(hints[one.name])
        if isinstance(option, partial):
            option = option(envvar=f"{PREFIX}{one.name.upper()}")
        default = one.default if one.default_factory is MISSING else one.default_factory()
        return Annotated[kind, option], default

    return {one.name: declared(one) for one in fields(options)}


WorkOptions.options = _declared(WorkOptions)


def work(config: Config, options: WorkOptions) -> None:
    """Run a worker: claim jobs of some queues and run their handlers.

    The first SIGTERM or Ctrl-C lets running jobs finish and gives back what has not been started; the second does not
    wait. With several processes, or a limit on jobs or memory, a supervisor starts the workers anew when they end. Exit
    code 75: a process without a supervisor asks to be started anew, for all slots of a queue are held by handlers that
    timed out, or one of these goes on blocking the event loop.

    sa-jobqueue work --app shop.tasks
    sa-jobqueue work --app shop.tasks --queue mail=10 --queue default=50 --processes 2
    """
    set_log_format(options.log_format)
    settings, queues = options.settings(), _queues_of(options.queue)
    memory = None if options.max_memory is None else _bytes(options.max_memory)
    direct = None if options.listen_url is None else database_url(options.listen_url)
    cores = _cores() if options.pin else []
    url = database(config, make=True)
    slots_of = ", ".join(f"{name}={slots}" for name, slots in queues.items())
    serving = f"serving {slots_of} in schema {config.schema} of {url}"
    if options.supervised:
        # As if the terminal had said it: before the worker is up that ends the process, and afterwards it drains.
        drain_with_supervisor(lambda: os.kill(os.getpid(), signal.SIGTERM))
    else:
        with open_engine(config, url).begin() as connection:
            check_schema(connection)  # better one line now than one from each process
        if options.processes > 1 or options.max_jobs is not None or memory is not None:
            raise typer.Exit(_supervise(config, options, cores, serving, _environment(url, direct)))
        if cores:
            os.sched_setaffinity(0, cores[:1])
    registry = load_registry(config)
    registry.resolve()
    worker = Worker(
        url,
        queues,
        registry=registry,
        schema=config.schema if config.translate else None,
        listen=options.listen,
        listen_url=direct,
        max_jobs=options.max_jobs,
        max_memory=memory,
        settings=settings,
    )
    if options.tried_out:
        _leave_threads_behind(0)
        return
    if not options.supervised:
        logger.info("%s", serving)
    search_less()
    ending = worker.run(until_idle=options.drain)
    _leave_threads_behind(ending)
    raise typer.Exit(ending)


def _queues_of(given: Sequence[str]) -> dict[str, int]:
    """`["mail=10", "default"]` as names and slots; ConfigurationError for what cannot be read."""
    queues: dict[str, int] = {}
    for text in given:
        name, equals, slots = text.rpartition("=")
        if not equals:
            name, slots = text, str(_SLOTS)
        if not re.fullmatch(r"\d{1,9}", slots, re.ASCII):
            raise ConfigurationError(f"--queue {text}: expected NAME or NAME=SLOTS, as in mail=10")
        if re.search(r"=\d+(\s|[,;])", name, re.ASCII):
            raise ConfigurationError(
                f"--queue {text}: expected one queue; repeat --queue, or write spaces between them in SA_JOBQUEUE_QUEUE, "
                "a list or a table in pyproject.toml"
            )
        if name in queues:
            raise ConfigurationError(f"--queue {text}: the queue {name!r} is named twice")
        queues[name] = int(slots)
    return queues


def _bytes(text: str) -> int:
    """Bytes of a size like "500M"; a plain number is MB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)I?B?", text.strip().upper(), re.ASCII)
    if found is None:
        raise ConfigurationError(f"--max-memory {text}: expected a size, as in 500M or 2G")
    return int(float(found[1]) * _UNITS[found[2]])


def _cores() -> list[int]:
    """The processor cores that this process may use; ConfigurationError where a system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        raise ConfigurationError(
            f"--pin: processes cannot be kept on a core on {sys.platform}; Linux can; leave it out"
        )
    return sorted(os.sched_getaffinity(0))


def _arguments(config: Config, options: WorkOptions) -> list[str]:
    """The command line that tells a worker process the same; its URLs are in its environment."""
    values = asdict(options) | {
        "processes": 1, "supervised": True, "listen_url": None, "pin": False,
        "app": config.app, "schema": config.schema, "log_level": config.log_level, "debug": config.debug,
    }  # fmt: skip
    said: list[str] = []
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        if value is None or (value is False and name != "listen"):
            continue
        if value is True:
            said.append(option)
        elif value is False:
            said.append(f"--no-{name}")
        else:
            several: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value]
            said += [f"{option}={one}" for one in several]
    return said


def _environment(url: URL, direct: URL | None) -> dict[str, str]:
    """What worker processes get: URLs by the environment, for everybody may read a command line."""
    urls = {"DATABASE_URL": url, "LISTEN_URL": direct}
    said = {
        f"{PREFIX}{name}": value.render_as_string(hide_password=False)
        for name, value in urls.items() if value is not None
    }  # fmt: skip
    return {**os.environ, **said}


def _supervise(config: Config, options: WorkOptions, cores: Sequence[int], serving: str, env: Mapping[str, str]) -> int:
    """Keep the worker processes running; the exit code.

    First one process makes all that a worker needs, and ends: what cannot work is said once, and nothing is started.
    This process does not try that itself, for a supervisor has none of the application's code.
    """
    command = [sys.executable, "-m", "sa_jobqueue", "work", *_arguments(config, options)]
    with subprocess.Popen([*command, "--tried-out"], env=env, stdin=subprocess.PIPE) as tried_out:
        if tried_out.wait() == CANNOT_WORK:
            return CANNOT_WORK
    logger.info("%s", serving)
    supervisor = Supervisor(
        command, options.processes, env=env, cores=cores, grace=options.grace, until_idle=options.drain
    )
    return supervisor.run()


def _leave_threads_behind(code: int) -> None:
    """End the process here and now if threads that handlers started will not end: Python would wait for them."""
    until = monotonic() + _LAST_THREADS
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join(max(until - monotonic(), 0.0))
            if thread.is_alive():
                logger.warning("the thread %r does not end; leaving without it", thread.name)
                logging.shutdown()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
