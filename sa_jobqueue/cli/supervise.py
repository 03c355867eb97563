"""The command `work` with a supervisor: the command lines of its worker processes, and the one that is tried out before them."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.log import get_logger
from sa_jobqueue.worker import serving, worker
from sa_jobqueue.worker.process.supervisor import CANNOT_WORK, Supervisor

from .config import Config
from .endpoint import serve_supervisor
from .options import PREFIX
from .reload import Changes

if TYPE_CHECKING:
    from sa_jobqueue.metrics.endpoint import Endpoint
    from sa_jobqueue.worker.worker import Worker

    from .work import WorkOptions

__all__ = ["reporting", "say_less", "supervise", "usable_cores"]

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Report:
    """What a process says that was tried out."""

    grace: float
    database: str | None


def supervise(config: Config, options: WorkOptions, cores: Sequence[int], endpoint: Endpoint | None) -> int:
    """Keep the worker processes running; the exit code.

    First one process tries out all that a worker needs, reports, and ends. So an error is said once, before any worker is
    started. The supervisor does not try that itself, because it must not import the application's code.
    """
    changes = Changes(config.app) if options.reload else None  # before anything of the application is read
    command = [sys.executable, "-m", "sa_jobqueue", "work", *_arguments(config, options)]
    env = _environment(config.database_url, options.listen_url)
    tried_out = _try_out(command, env)
    report = _read_report(tried_out) or _Report(options.grace, None)
    if tried_out.returncode == CANNOT_WORK:
        return CANNOT_WORK
    supervisor = Supervisor(
        command,
        options.processes,
        env=_environment(report.database, options.listen_url),
        cores=cores,
        reports=None if endpoint is None else serve_supervisor(endpoint),
        grace=report.grace,
        until_idle=options.drain,
        reloads=options.reload,
    )
    if changes is None:
        return supervisor.run()

    def restart(changed: str, process: subprocess.Popen[bytes]) -> None:
        found = _read_report(process)
        if found is None or process.returncode:
            logger.warning("%s changed and cannot be used; the workers go on as before, until the next change", changed)
        else:
            supervisor.restart(
                f"{changed} changed", grace=found.grace, env=_environment(found.database, options.listen_url)
            )

    with changes.tried_out(lambda: _try_out([*command, "--log-level=warning"], env, apart=True), restart):
        return supervisor.run()


def _try_out(command: Sequence[str], env: Mapping[str, str], *, apart: bool = False) -> subprocess.Popen[bytes]:
    """`apart`: Ctrl-C in a terminal does not reach it."""
    return subprocess.Popen(
        [*command, "--tried-out"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=apart
    )


def _read_report(tried_out: subprocess.Popen[bytes]) -> _Report | None:
    """What it reports, when it has ended."""
    with tried_out:
        assert tried_out.stdout is not None
        said = tried_out.stdout.readline()
        tried_out.wait()  # at the end of its stdin it would leave early
    return _Report(**json.loads(said)) if said else None


def _arguments(config: Config, options: WorkOptions) -> list[str]:
    """The command line for a worker process with the same options; it gets URLs by its environment."""
    values = asdict(options) | {
        "processes": 1, "supervised": True, "listen_url": None, "pin": False, "metrics_port": None,
        "app": config.app or [""], "schema": config.schema, "embedded_dir": config.embedded_dir,
        "log_level": config.log_level, "debug": config.debug,
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


def _environment(database: str | None, direct: str | None) -> dict[str, str]:
    """The environment of worker processes. URLs are in it, because every user may read a command line."""
    urls = {f"{PREFIX}DATABASE_URL": database, f"{PREFIX}LISTEN_URL": direct}
    return {**os.environ, **{name: url for name, url in urls.items() if url is not None}}


@contextmanager
def reporting(wanted: bool) -> Generator[Callable[[Worker, bool], None]]:
    """A function that reports the worker to the supervisor on stdout. Until then all other output goes to stderr."""
    if not wanted:
        yield lambda worker, is_theirs: None
        return
    with os.fdopen(os.dup(1), "w") as pipe:
        os.dup2(2, 1)

        def report(worker: Worker, is_theirs: bool) -> None:
            url = None if is_theirs else worker.engine.url.render_as_string(hide_password=False)
            json.dump({"grace": worker.settings.grace, "database": url}, pipe)
            pipe.write("\n")

        yield report


def usable_cores() -> list[int]:
    """The processor cores that this process may use; ConfigurationError if the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        raise ConfigurationError(
            f"--pin: processes cannot be kept on a core on {sys.platform}; Linux can; leave it out"
        )
    return sorted(os.sched_getaffinity(0))


def say_less() -> None:
    """In a worker process that is often restarted: leave out that it begins and ends, which the supervisor says."""
    for module in (serving, worker):
        logging.getLogger(module.__name__).setLevel(logging.WARNING)
