"""The command `work`: serve queues until a signal comes, in this process or in several under a supervisor.

sa-jobqueue work --app shop.tasks --queue mail=10 --queue default=50 --processes 2
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from time import monotonic
from typing import Annotated

import typer

from ..errors import ConfigurationError
from ..migrations import check_schema
from ..rules.settings import WorkerSettings
from ..sql.workers import serves
from ..util.log import get_logger
from ..util.urls import database_url
from ..worker.connections.service import refuse_autocommit
from ..worker.process.inside import refuse_patched, tune_gc
from ..worker.process.supervisor import drain_with_supervisor
from ..worker.worker import Worker
from .application import check_tasks, load_app
from .config import Config, LogLevel, Options, setting
from .logs import LogFormat, set_log_format
from .metrics import open_endpoint, send_metrics, serve_worker
from .place import database, name_of
from .supervise import reporting, say_less, supervise, usable_cores

logger = get_logger(__name__)

_SETTINGS = WorkerSettings()
#: Slots of a queue that is named without a number.
_SLOTS = 10
#: Threads that handlers left behind get this many seconds before the process ends without them.
_LAST_THREADS = 1.0
#: Options that are refused where the application makes its own Worker.
_THE_WORKERS = {"database_url", "schema", "embedded_dir", "queue", "listen", "listen_url"} | {
    one.name for one in fields(WorkerSettings)
}
_UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30}


_queues, _pace, _pressure, _waking, _processes, _metrics = (
    partial(setting, rich_help_panel=panel)
    for panel in ("Queues", "Pace", "Pressure", "Waking up", "Processes", "Metrics")
)
_seconds = partial(_pace, metavar="SECONDS")


@dataclass(frozen=True)
class WorkOptions(Options):
    """The options of `work`. Those that `WorkerSettings` has by the same name become settings of the worker."""

    queue: Annotated[
        list[str],
        _queues(
            metavar="NAME=N",
            help=f"Serve this queue with N slots in each process; NAME alone: {_SLOTS} slots. May be repeated. '*=N': N slots that "
            "all other queues share.",
        ),
    ] = field(default_factory=lambda: ["default=10"])
    processes: Annotated[
        int,
        _processes(
            metavar="N",
            min=1,
            max=256,
            help="Run this number of worker processes under a supervisor, which replaces a dead one.",
        ),
    ] = 1
    max_jobs: Annotated[
        int | None,
        _processes(metavar="N", min=1, help="Restart a worker process after this number of jobs.", show_default=False),
    ] = None
    max_memory: Annotated[
        str | None,
        _processes(
            metavar="SIZE",
            help="Restart a worker process when its resident memory exceeds this: 500M, 2G; a plain number is MB.",
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
    max_child_jobs: Annotated[
        int | None,
        _processes(
            metavar="N",
            min=1,
            help='Replace a child process, which runs tasks of executor="process", after this number of jobs.',
            show_default=False,
        ),
    ] = None
    child_grace: Annotated[
        float,
        _processes(
            metavar="SECONDS",
            help="After a cancel or a lost lease, the time that a job in a child process has to end before the process is killed.",
        ),
    ] = _SETTINGS.child_grace
    reload: Annotated[
        bool,
        _processes(
            "--reload",
            help="For development: restart the worker processes when a Python file of the application changes.",
        ),
    ] = False
    drain: Annotated[bool, typer.Option("--drain", help="End when no job is due.")] = False
    lease: Annotated[
        float, _seconds(help="How long a claim holds without renewal: how long the jobs of a crashed worker wait.")
    ] = _SETTINGS.lease
    grace: Annotated[
        float, _seconds(help="After the first SIGTERM or Ctrl-C, the time that running jobs have to finish.")
    ] = _SETTINGS.grace
    buffer: Annotated[
        int,
        _pace(
            metavar="N",
            help="The most jobs of a queue to claim ahead of a free slot, if they finish fast enough. 0: none.",
        ),
    ] = _SETTINGS.buffer
    max_rescues: Annotated[
        int,
        _pace(
            metavar="N", help="Fail a job after its worker has died, or has left while the job ran, this many times."
        ),
    ] = _SETTINGS.max_rescues
    archive_months: Annotated[
        int | None,
        _pace(
            metavar="N",
            help="Keep the archive of finished jobs for this number of months, and drop older ones.",
            show_default="for ever",
        ),
    ] = None
    session_idle_timeout: Annotated[
        float | None,
        _seconds(
            help="How long a handler's transaction may be idle before the server ends it; by default what the "
            "server says, or an hour."
        ),
    ] = None
    max_snapshot_age: Annotated[
        float | None,
        _pressure(
            metavar="SECONDS",
            help="Claim less while a transaction that keeps VACUUM from removing rows is older than this.",
            show_default=False,
        ),
    ] = None
    max_lock_waits: Annotated[
        int | None,
        _pressure(
            metavar="N",
            help="Claim less while more sessions than this wait for locks in the database.",
            show_default=False,
        ),
    ] = None
    max_replication_lag: Annotated[
        float | None,
        _pressure(
            metavar="SECONDS", help="Claim less while a standby is further behind than this.", show_default=False
        ),
    ] = None
    max_active_connections: Annotated[
        int | None,
        _pressure(
            metavar="N",
            help="Claim less while more sessions than this are busy in the database, handlers' among them.",
            show_default=False,
        ),
    ] = None
    poll: Annotated[float, _waking(metavar="SECONDS", help="The longest pause between two polls of an idle queue.")] = (
        _SETTINGS.poll
    )
    listen: Annotated[bool, _waking(help="Let new jobs wake the worker, over a connection of its own.")] = True
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
    metrics_port: Annotated[
        int | None,
        _metrics(
            metavar="PORT",
            min=0,
            max=65_535,
            help="Serve /metrics for Prometheus, /livez and /readyz on this port, for all processes of this command. 0: any that is free.",
            show_default=False,
        ),
    ] = None
    metrics_host: Annotated[
        str, _metrics(metavar="HOST", help="The address to serve them at; 0.0.0.0: all of this machine.")
    ] = "127.0.0.1"
    log_jobs: Annotated[
        bool, setting("--log-jobs", help="Log how each job ended, how long it took and how long it waited.")
    ] = False
    log_format: Annotated[LogFormat, setting(help="One line of text, or one JSON object, per event.")] = LogFormat.TEXT
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False
    tried_out: Annotated[bool, typer.Option("--tried-out", hidden=True)] = False
    metrics_pipe: Annotated[int | None, typer.Option("--metrics-pipe", hidden=True)] = None
    """To a supervised process: where to report what it has counted."""
    said: Annotated[list[str], typer.Option("--said", hidden=True)] = field(default_factory=list)
    """To a supervised process: which of a Worker's own options are on its supervisor's command line."""

    def settings(self) -> WorkerSettings:
        """Those of the options that are settings; raises ConfigurationError."""
        names = {one.name for one in fields(WorkerSettings)} & {one.name for one in fields(self)}
        return WorkerSettings(**{name: getattr(self, name) for name in names})

    def check(self) -> None:
        """Say what is wrong before anything is started; raises ConfigurationError."""
        self.settings()
        self.limits()
        _queues_of(self.queue)
        if self.reload and self.drain:
            raise ConfigurationError(
                "--drain ends when no job is due, and --reload does not end: leave one of them out"
            )

    def limits(self) -> dict[str, int | None]:
        """The limits at which a process is restarted; raises ConfigurationError."""
        return {"max_jobs": self.max_jobs, "max_memory": None if self.max_memory is None else _bytes(self.max_memory)}


def work(context: typer.Context, config: Config, options: WorkOptions) -> None:
    """Run a worker: claim jobs of some queues and run their handlers.

    The first SIGTERM or Ctrl-C lets running jobs finish and gives back what has not been started; the second does not
    wait; the same signal again within a second is the same one. With several processes, --reload, or a limit on jobs or memory, a supervisor restarts the workers when they end. Exit
    code 75: a process without a supervisor asks to be restarted, because handlers that timed out hold all slots of a
    queue, or one of them keeps blocking the event loop. Exit code 4: with --drain, a signal ended it before it found that no job
    is due.

    --app may also name a Worker, or a function that makes one, which each worker process calls. That Worker decides on its
    database, schema, queues and settings: options for these are refused on the command line, and ignored in the environment
    and in pyproject.toml.

    sa-jobqueue work --app shop.tasks
    sa-jobqueue work --app shop.tasks --queue mail=10 --queue default=50 --processes 2
    sa-jobqueue work --app shop:worker --processes 2 --max-memory 500M
    sa-jobqueue work --app shop.tasks --reload
    """
    set_log_format(options.log_format)
    options.check()
    options = options if options.supervised else replace(options, said=_said(context))
    before = threading.enumerate()
    cores = usable_cores() if options.pin else []
    endpoint = None
    if options.metrics_port is not None and not options.supervised:
        endpoint = open_endpoint(options.metrics_host, options.metrics_port, handlers=True)
    if options.supervised:
        # As Ctrl-C in a terminal: it ends the process before the worker is up, and drains it afterwards.
        drain_with_supervisor(lambda: os.kill(os.getpid(), signal.SIGTERM))
        if options.reload and config.log_level is not LogLevel.DEBUG:
            say_less()
    elif options.processes > 1 or options.reload or any(limit is not None for limit in options.limits().values()):
        raise typer.Exit(supervise(config, options, cores, endpoint))
    elif cores:
        os.sched_setaffinity(0, cores[:1])
    with reporting(options.tried_out) as report:
        worker, is_theirs = _worker(config, options)
        if not options.supervised or options.tried_out:
            _check_tables(worker)
            slots_of = ", ".join(f"{name}={slots}" for name, slots in worker.queues.items())
            logger.info("serving %s in schema %s of %s", slots_of, worker.schema, name_of(worker.engine.url))
            if others := sorted({task.queue for task in worker.registry if not serves(worker.queues, task.queue)}):
                logger.info("the tasks also name queues that this worker does not serve: %s", ", ".join(others))
        report(worker, is_theirs)
    if options.tried_out:
        _leave_threads_behind(0, before)
        return
    if endpoint is not None:
        serve_worker(endpoint, worker)
    sender = None if options.metrics_pipe is None else send_metrics(options.metrics_pipe, worker)
    tune_gc()
    try:
        ending = worker.run(until_idle=options.drain)
    finally:
        if sender is not None:
            sender.finish()
    _leave_threads_behind(ending, before)
    raise typer.Exit(ending)


def _said(context: typer.Context) -> list[str]:
    """The options on the command line that only the application's Worker may decide."""
    sources = {name: context.get_parameter_source(name) for name in context.params if name in _THE_WORKERS}
    return [name for name, source in sources.items() if getattr(source, "name", "") == "COMMANDLINE"]


def _worker(config: Config, options: WorkOptions) -> tuple[Worker, bool]:
    """The worker to run, and whether the application made it."""
    found = load_app(config)
    refuse_patched()
    found.registry.resolve()
    check_tasks(config, found.registry)
    if found.worker is not None and options.said:
        raise ConfigurationError(
            f"--{', --'.join(options.said).replace('_', '-')}: --app names a Worker, which says that itself; leave it "
            "out, or give --app the module alone"
        )
    worker = found.worker or Worker(
        database(config, make=True),
        _queues_of(options.queue),
        registry=found.registry,
        schema=config.schema if config.translate else None,
        listen=options.listen,
        listen_url=None if options.listen_url is None else database_url(options.listen_url),
        settings=options.settings(),
    )
    worker.limit(**options.limits())
    worker.import_in_children(config.app)
    return worker, found.worker is not None


def _check_tables(worker: Worker) -> None:
    """Fail here if its tables are not there: one line, and not one from each process."""
    with worker.engine.connect() as connection:
        refuse_autocommit(connection)
        check_schema(connection, worker.schema)


def _queues_of(given: Sequence[str]) -> dict[str, int]:
    """`["mail=10", "default"]` as names and slots; ConfigurationError for what cannot be read."""
    queues: dict[str, int] = {}
    for text in given:
        name, equals, slots = text.rpartition("=")
        if not equals and (other := re.fullmatch(r"(.+):(\d*)", text, re.ASCII)):
            raise ConfigurationError(
                f"--queue {text}: for {other[2] or _SLOTS} slots of the queue {other[1]!r} write {other[1]}={other[2] or _SLOTS}; "
                f"for a queue that is named {text!r}, {text}={_SLOTS}"
            )
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


def _leave_threads_behind(code: int, before: Collection[threading.Thread]) -> None:
    """End the process at once if threads that handlers started do not end: Python would wait for them. `before`: those that are not theirs."""
    until = monotonic() + _LAST_THREADS
    for thread in threading.enumerate():
        if not thread.daemon and thread not in before:
            thread.join(max(until - monotonic(), 0.0))
            if thread.is_alive():
                logger.warning("the thread %r does not end; leaving without it", thread.name)
                logging.shutdown()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
