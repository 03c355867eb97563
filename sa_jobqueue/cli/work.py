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
from collections.abc import Collection
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
from .config import SLOTS, Config, LogLevel, Options, queues_of, setting
from .logs import LogFormat, set_log_format
from .metrics import open_endpoint, send_metrics, serve_worker
from .place import database, name_of
from .supervise import reporting, say_less, supervise, usable_cores

logger = get_logger(__name__)

_SETTINGS = WorkerSettings()
#: Seconds that threads which handlers left behind get, before the process ends without them.
_LAST_THREADS = 1.0
_SETTING_NAMES = {setting.name for setting in fields(WorkerSettings)}
#: Options that are refused if the application makes its own Worker.
_OF_A_WORKER = {"database_url", "schema", "embedded_dir", "queue", "listen", "listen_url"} | _SETTING_NAMES
_UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30}


_pace, _waking, _processes, _metrics = (
    partial(setting, rich_help_panel=panel) for panel in ("Pace", "Waking up", "Processes", "Metrics")
)
_seconds = partial(_pace, metavar="SECONDS")
_threshold = partial(setting, rich_help_panel="Pressure", show_default=False)


@dataclass(frozen=True)
class WorkOptions(Options):
    """The options of `work`. An option with the name of a field of `WorkerSettings` becomes a setting of the worker."""

    queue: Annotated[
        list[str],
        setting(
            metavar="NAME=N",
            help=f"Serve this queue with N slots in each process; NAME alone: {SLOTS} slots. '*=N': N slots that all other queues "
            "share. Can be repeated.",
            rich_help_panel="Queues",
        ),
    ] = field(default_factory=lambda: ["default=10"])
    processes: Annotated[
        int,
        _processes(metavar="N", min=1, max=256, help="Run N worker processes; a supervisor replaces dead processes."),
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
            help="Keep each worker process on one processor core. For def handlers that wait for the database most of the time; not "
            "for handlers that compute without Python's lock.",
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
            help="After a cancel or a lost lease, the time until a child process whose job has not ended is killed.",
        ),
    ] = _SETTINGS.child_grace
    reload: Annotated[
        bool,
        _processes(
            "--reload", help="For development: restart worker processes when a Python file of the application changes."
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
        _pace(metavar="N", help="The most jobs to claim ahead of a free slot, if they finish fast enough. 0: none."),
    ] = _SETTINGS.buffer
    max_rescues: Annotated[
        int,
        _pace(metavar="N", help="Fail a job after its worker has died, or left while the job ran, this many times."),
    ] = _SETTINGS.max_rescues
    archive_months: Annotated[
        int | None, _pace(metavar="N", help="Drop archived jobs after this number of months.", show_default="never")
    ] = None
    session_idle_timeout: Annotated[
        float | None,
        _seconds(help="How long a handler's transaction may be idle. Default: the server's setting, or an hour."),
    ] = None
    max_snapshot_age: Annotated[
        float | None,
        _threshold(
            metavar="SECONDS", help="Claim less while a transaction that keeps VACUUM from removing rows is older."
        ),
    ] = None
    max_lock_waits: Annotated[
        int | None, _threshold(metavar="N", help="Claim less while more sessions wait for locks in the database.")
    ] = None
    max_replication_lag: Annotated[
        float | None, _threshold(metavar="SECONDS", help="Claim less while a standby is further behind.")
    ] = None
    max_active_connections: Annotated[
        int | None,
        _threshold(
            metavar="N", help="Claim less while more sessions are busy in the database, including those of handlers."
        ),
    ] = None
    poll: Annotated[float, _waking(metavar="SECONDS", help="The longest pause between two polls of an idle queue.")] = (
        _SETTINGS.poll
    )
    listen: Annotated[bool, _waking(help="Let new jobs wake the worker, over a connection of its own.")] = True
    listen_url: Annotated[
        str | None,
        _waking(
            metavar="URL", help="A direct URL to listen on, if --database-url leads to a pooler.", show_default=False
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
            help="Serve /metrics for Prometheus, /livez and /readyz on this port, for all processes of this command. 0: any free port.",
            show_default=False,
        ),
    ] = None
    metrics_host: Annotated[
        str, _metrics(metavar="HOST", help="The address to serve them at; 0.0.0.0: all addresses of this machine.")
    ] = "127.0.0.1"
    log_jobs: Annotated[
        bool, setting("--log-jobs", help="Log how each job ended, how long it took and how long it waited.")
    ] = False
    log_format: Annotated[LogFormat, setting(help="One line of text, or one JSON object, per event.")] = LogFormat.TEXT
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False
    tried_out: Annotated[bool, typer.Option("--tried-out", hidden=True)] = False
    metrics_pipe: Annotated[int | None, typer.Option("--metrics-pipe", hidden=True)] = None
    """In a supervised process: the file descriptor to which it reports its counts."""
    said: Annotated[list[str], typer.Option("--said", hidden=True)] = field(default_factory=list)
    """In a supervised process: the options on its supervisor's command line that only a Worker decides on."""

    def settings(self) -> WorkerSettings:
        """The options that are settings. Raises ConfigurationError."""
        names = _SETTING_NAMES & {option.name for option in fields(self)}
        return WorkerSettings(**{name: getattr(self, name) for name in names})

    def check(self) -> None:
        """Check the options before anything starts. Raises ConfigurationError."""
        self.settings()
        self.limits()
        queues_of(self.queue)
        if self.reload and self.drain:
            raise ConfigurationError(
                "--drain ends when no job is due, and --reload does not end: leave one of them out"
            )

    def limits(self) -> dict[str, int | None]:
        """The limits at which a process is restarted. Raises ConfigurationError."""
        return {"max_jobs": self.max_jobs, "max_memory": None if self.max_memory is None else _bytes(self.max_memory)}


def work(context: typer.Context, config: Config, options: WorkOptions) -> None:
    """Run a worker: claim jobs of some queues and run their handlers.

    The first SIGTERM or Ctrl-C lets running jobs finish and gives back jobs that have not started; the second does not wait. A
    signal that is repeated within a second counts once. With several processes, --reload, or a limit on jobs or memory, a
    supervisor restarts the workers when they end. Exit code 75: a process without a supervisor asks to be restarted, because
    handlers that timed out hold all slots of a queue, or keep blocking the event loop. Exit code 4: with --drain, a signal
    ended the process while jobs may still have been due.

    --app can also name a Worker, or a function that returns a Worker, which each worker process calls. That Worker decides on its
    database, schema, queues and settings: options for these are refused on the command line, and ignored in the environment
    and in pyproject.toml.

    sa-jobqueue work --app shop.tasks
    sa-jobqueue work --app shop.tasks --queue mail=10 --queue default=50 --processes 2
    sa-jobqueue work --app shop:worker --processes 2 --max-memory 500M
    sa-jobqueue work --app shop.tasks --reload
    """
    set_log_format(options.log_format)
    options.check()
    if not options.supervised:
        sources = {name: context.get_parameter_source(name) for name in context.params if name in _OF_A_WORKER}
        given = [name for name, source in sources.items() if getattr(source, "name", "") == "COMMANDLINE"]
        options = replace(options, said=given)
    before = threading.enumerate()
    cores = usable_cores() if options.pin else []
    endpoint = None
    if options.metrics_port is not None and not options.supervised:
        endpoint = open_endpoint(options.metrics_host, options.metrics_port, handlers=True)
    if options.supervised:
        # Like Ctrl-C in a terminal: it ends the process before the worker is up, and drains it afterwards.
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
            # Missing tables fail here: with one line, and not with a line from each process.
            with worker.engine.connect() as connection:
                refuse_autocommit(connection)
                check_schema(connection, worker.schema)
            queues = ", ".join(f"{name}={slots}" for name, slots in worker.queues.items())
            logger.info("serving %s in schema %s of %s", queues, worker.schema, name_of(worker.engine.url))
            if others := sorted({task.queue for task in worker.registry if not serves(worker.queues, task.queue)}):
                logger.info("tasks also use queues that this worker does not serve: %s", ", ".join(others))
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


def _worker(config: Config, options: WorkOptions) -> tuple[Worker, bool]:
    """The worker to run, and whether the application made it."""
    application = load_app(config)
    refuse_patched()
    application.registry.resolve()
    check_tasks(config, application.registry)
    if application.worker is not None and options.said:
        raise ConfigurationError(
            f"--{', --'.join(options.said).replace('_', '-')}: --app names a Worker, which decides this on its own; omit the "
            "option, or give --app the module alone"
        )
    worker = application.worker or Worker(
        database(config, make=True),
        queues_of(options.queue),
        registry=application.registry,
        schema=config.schema if config.translate else None,
        listen=options.listen,
        listen_url=None if options.listen_url is None else database_url(options.listen_url),
        settings=options.settings(),
    )
    worker.limit(**options.limits())
    worker.import_in_children(config.app)
    return worker, application.worker is not None


def _bytes(text: str) -> int:
    """Parse a size like "500M" as bytes; a plain number is MB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)I?B?", text.strip().upper(), re.ASCII)
    if found is None:
        raise ConfigurationError(f"--max-memory {text}: expected a size, as in 500M or 2G")
    return int(float(found[1]) * _UNITS[found[2]])


def _leave_threads_behind(code: int, before: Collection[threading.Thread]) -> None:
    """End the process at once if threads of handlers do not end: Python would wait for them. `before`: threads that are not theirs."""
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
