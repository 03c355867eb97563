"""The command `work`: serve queues until a signal comes, in this process or in several under a supervisor.

sa-jobqueue work --app shop.tasks --queue mail=10 --queue default=50 --processes 2
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from time import monotonic
from typing import Annotated, Any

import typer
from sqlalchemy import URL

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.settings import WorkerSettings
from sa_jobqueue.urls import database_url, mask_passwords
from sa_jobqueue.worker.supervisor import Supervisor, drain_with_supervisor
from sa_jobqueue.worker.worker import Worker

from .common import database, load_registry, transaction
from .config import PREFIX, Config

__all__ = ["LogFormat", "work"]

logger = logging.getLogger(__name__)

_SETTINGS = WorkerSettings()
_QUEUES, _PACE, _WAKING, _PROCESSES = "Queues", "Pace", "Waking up", "Processes"
#: Slots of a queue that is named without a number.
_SLOTS = 10
#: Threads that handlers left behind get this many seconds before the process ends without them.
_LAST_THREADS = 1.0
_UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30}


class LogFormat(StrEnum):
    """How a log line is written."""

    TEXT = "text"
    JSON = "json"


def _seconds(name: str, help: str, panel: str = _PACE) -> Any:
    return typer.Option(metavar="SECONDS", envvar=f"{PREFIX}{name}", help=help, rich_help_panel=panel)


def work(
    config: Config,
    *,
    queue: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=N",
            envvar=f"{PREFIX}QUEUE",
            help=f"Serve this queue with N slots in each process; NAME alone: {_SLOTS} slots. May be repeated.",
            rich_help_panel=_QUEUES,
        ),
    ] = ["default=10"],  # noqa: B006  # Typer copies it
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            max=256,
            envvar=f"{PREFIX}PROCESSES",
            help="Run so many worker processes under a supervisor, which starts a dead one again.",
            rich_help_panel=_PROCESSES,
        ),
    ] = 1,
    max_jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            envvar=f"{PREFIX}MAX_JOBS",
            help="Start a worker process anew after so many jobs.",
            rich_help_panel=_PROCESSES,
            show_default=False,
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            envvar=f"{PREFIX}MAX_MEMORY",
            help="Start a worker process anew above so much resident memory: 500M, 2G; a plain number is MB.",
            rich_help_panel=_PROCESSES,
            show_default=False,
        ),
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="End when nothing is due any more.")] = False,
    lease: Annotated[
        float,
        _seconds("LEASE", "How long a claim holds without renewal: after a crash its jobs wait this long."),
    ] = _SETTINGS.lease,
    grace: Annotated[
        float, _seconds("GRACE", "After the first SIGTERM or Ctrl-C, the time that running jobs have to finish.")
    ] = _SETTINGS.grace,
    buffer: Annotated[
        int,
        typer.Option(
            envvar=f"{PREFIX}BUFFER",
            help="Most jobs of a queue to claim ahead of a free slot, if they finish fast enough. 0: none.",
            rich_help_panel=_PACE,
        ),
    ] = _SETTINGS.buffer,
    max_rescues: Annotated[
        int,
        typer.Option(
            envvar=f"{PREFIX}MAX_RESCUES",
            help="A job whose worker has died so many times is failed.",
            rich_help_panel=_PACE,
        ),
    ] = _SETTINGS.max_rescues,
    session_idle_timeout: Annotated[
        float | None,
        _seconds(
            "SESSION_IDLE_TIMEOUT", "The longest that a handler's transaction may sit idle before the server ends it."
        ),
    ] = None,
    poll: Annotated[
        float, _seconds("POLL", "The longest time between two looks at an idle queue.", _WAKING)
    ] = _SETTINGS.poll,
    listen: Annotated[
        bool,
        typer.Option(
            envvar=f"{PREFIX}LISTEN",
            help="Be woken by new jobs, on a connection for that alone.",
            rich_help_panel=_WAKING,
        ),
    ] = True,
    listen_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar=f"{PREFIX}LISTEN_URL",
            help="A direct URL to listen on, where --database-url leads to a pooler.",
            rich_help_panel=_WAKING,
            show_default=False,
        ),
    ] = None,
    pooled: Annotated[
        bool,
        typer.Option(
            "--pooled",
            envvar=f"{PREFIX}POOLED",
            help="The database is behind a pooler in transaction mode (PgBouncer).",
            rich_help_panel=_WAKING,
        ),
    ] = False,
    log_format: Annotated[
        LogFormat, typer.Option(envvar=f"{PREFIX}LOG_FORMAT", help="One line of text, or one JSON object, per event.")
    ] = LogFormat.TEXT,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
) -> None:
    """Run a worker: claim jobs of some queues and run their handlers.

    The first SIGTERM or Ctrl-C lets running jobs finish and gives back what has not been started; the second does not
    wait. With several processes, or a limit on jobs or memory, a supervisor starts the workers anew when they end.
    """
    _set_log_format(log_format)
    settings = WorkerSettings(
        lease=lease, poll=poll, grace=grace, buffer=buffer, max_rescues=max_rescues, pooled=pooled,
        session_idle_timeout=session_idle_timeout,
    )  # fmt: skip
    queues, memory = _queues(queue), None if max_memory is None else _bytes(max_memory)
    direct = None if listen_url is None else database_url(listen_url)
    url = database(config)
    if not supervised:
        with transaction(config):
            pass  # better one line now than one from each process
        logger.info(
            "serving %s in schema %s of %s",
            ", ".join(f"{name}={slots}" for name, slots in queues.items()), config.schema, url,
        )  # fmt: skip
        if processes > 1 or max_jobs is not None or memory is not None:
            options = _options(
                queue=queue, max_jobs=max_jobs, max_memory=max_memory, drain=drain, lease=lease, grace=grace,
                buffer=buffer, max_rescues=max_rescues, session_idle_timeout=session_idle_timeout, poll=poll,
                listen=listen, pooled=pooled, log_format=log_format, log_level=config.log_level, debug=config.debug,
                schema=config.schema, app=config.app, processes=1, supervised=True,
            )  # fmt: skip
            command = [sys.executable, "-m", "sa_jobqueue", "work", *options]
            supervisor = Supervisor(
                command, processes, env=_environment(url, direct), grace=grace, until_idle=drain
            )  # fmt: skip
            raise typer.Exit(supervisor.run())
    else:
        # As if the terminal had said it: before the worker is up that ends the process, and afterwards it drains.
        drain_with_supervisor(lambda: os.kill(os.getpid(), signal.SIGTERM))
    worker = Worker(
        url,
        queues,
        registry=load_registry(config),
        schema=config.schema if config.translate else None,
        listen=listen,
        listen_url=direct,
        max_jobs=max_jobs,
        max_memory=memory,
        settings=settings,
    )
    ending = worker.run(until_idle=drain)
    _leave_threads_behind(ending)
    raise typer.Exit(ending)


def _queues(given: Sequence[str]) -> dict[str, int]:
    """`["mail=10", "default"]` as names and slots; ConfigurationError for what cannot be read."""
    queues: dict[str, int] = {}
    for text in given:
        name, equals, slots = text.rpartition("=")
        if not equals:
            name, slots = text, str(_SLOTS)
        if not re.fullmatch(r"\d{1,9}", slots, re.ASCII):
            raise ConfigurationError(f"--queue {text}: expected NAME or NAME=SLOTS, as in mail=10")
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


def _options(**values: Any) -> list[str]:
    """The options of a command line that say `values`."""
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
            several = value if isinstance(value, (list, tuple)) else [value]
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


# ---- logs

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class _JsonFormatter(logging.Formatter):
    """A record as one JSON object on one line, with its extras, without passwords."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": mask_passwords(record.getMessage()),
            "pid": record.process,
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = mask_passwords(self.formatException(record.exc_info))
        return json.dumps(line, default=str, ensure_ascii=False)


def _set_log_format(wanted: LogFormat) -> None:
    if wanted is LogFormat.JSON:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_JsonFormatter())
