"""The command `work` with a supervisor: a trial process, and the command lines of the worker processes."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..util.log import get_logger
from ..worker import serving, worker
from ..worker.process.signals import start_deaf
from ..worker.process.supervisor import CANNOT_WORK, Supervisor
from .config import PREFIX, Config, working_folder
from .metrics import serve_supervisor

if TYPE_CHECKING:
    from ..metrics.endpoint import Endpoint
    from ..worker.worker import Worker
    from .work import WorkOptions


logger = get_logger(__name__)

#: Milliseconds between two checks of the process that tries changes out.
_CHECK_EVERY = 100
_NOT_THE_APPLICATION = {"__pycache__", "node_modules", "site-packages"}

TryOut = Callable[[], "subprocess.Popen[bytes]"]
Ended = Callable[[str, "subprocess.Popen[bytes]"], None]


class Changes:
    """Changes, from now on, of the Python files of the application. `names`: its modules, as `--app` takes them.

    Raises ConfigurationError if the files cannot be watched.
    """

    def __init__(self, names: Sequence[str]) -> None:
        try:
            from watchfiles import watch
        except ImportError as error:
            raise ConfigurationError(
                '--reload needs watchfiles: install it with `python -m pip install "sa_jobqueue[reload]"`'
            ) from error
        logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it would log each change as well
        self._folders = watched_folders(names)
        self._stopping = threading.Event()
        self._batches = watch(
            *self._folders, watch_filter=lambda change, path: self._is_source(Path(path)), stop_event=self._stopping,
            rust_timeout=_CHECK_EVERY, yield_on_timeout=True,
        )  # fmt: skip
        watched = " and ".join(map(str, self._folders))
        try:
            next(self._batches)
        except (OSError, RuntimeError) as error:  # too many folders for the system, or a lack of rights
            raise ConfigurationError(f"--reload: {watched} cannot be watched: {error}") from error
        logger.info("restarting when a Python file in %s changes", watched)

    @contextmanager
    def tried_out(self, start: TryOut, ended: Ended) -> Generator[None]:
        """At each change, `start` a process that tries it out; when it ends, call `ended` with the changed files and the process.

        A process that still runs at the next change is killed. Both functions are called on a thread.
        """
        thread = threading.Thread(target=self._follow, args=(start, ended), name="sa-jobqueue reload", daemon=True)
        start_deaf(thread)
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()

    def _follow(self, start: TryOut, ended: Ended) -> None:
        process, changed = None, set[Path]()
        try:
            for batch in self._batches:  # an empty batch at each check
                if batch:
                    changed |= {Path(path) for _, path in batch}
                    _kill(process)
                    process = start()
                elif process is not None and process.poll() is not None:
                    ended(_described(changed), process)
                    process, changed = None, set[Path]()
        except Exception as error:  # from the system
            logger.error("files are no longer watched, and changes do not restart the workers: %r", error)
        finally:
            _kill(process)

    def _is_source(self, file: Path) -> bool:
        below = next((file.relative_to(folder).parts for folder in self._folders if file.is_relative_to(folder)), ())
        return file.suffix == ".py" and not any(part.startswith(".") or part in _NOT_THE_APPLICATION for part in below)


def watched_folders(names: Iterable[str]) -> list[Path]:
    """The working directory, which is searched first, and the folders of modules that are outside of it."""
    here = working_folder()
    found = {here if folder is None or folder.is_relative_to(here) else folder for folder in map(_folder_of, names)}
    found = found or {here}
    return sorted(folder for folder in found if found.isdisjoint(folder.parents))


def _folder_of(name: str) -> Path | None:
    """The folder of the package that `--app` names, or of the single module; None if it is not found. Nothing is imported."""
    top = name.partition(":")[0].partition(".")[0]
    sys.path.insert(0, str(working_folder()))
    try:
        spec = importlib.util.find_spec(top) if top.isidentifier() else None
    except (ImportError, ValueError):
        return None
    finally:
        del sys.path[0]
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).absolute()
    return Path(spec.origin).absolute().parent if spec.has_location and spec.origin else None


def _described(changed: set[Path]) -> str:
    first, *others = sorted(changed)
    with suppress(ValueError, ConfigurationError):
        first = first.relative_to(working_folder())
    if not others:
        return str(first)
    return f"{first} and {len(others)} more" if len(others) > 1 else f"{first} and one more"


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        with process:
            process.kill()


@dataclass(frozen=True, slots=True)
class _Report:
    """The report of a trial process."""

    grace: float
    database: str | None


def supervise(config: Config, options: WorkOptions, cores: Sequence[int], endpoint: Endpoint | None) -> int:
    """Keep the worker processes running, and return the exit code.

    A trial process first tries out everything that a worker needs, reports, and ends, so that an error is shown once, before any
    worker starts. The supervisor does not try this itself, because it must not import the application's code.
    """
    changes = Changes(config.app) if options.reload else None  # before any file of the application is read
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
            env = _environment(found.database, options.listen_url)
            supervisor.restart(f"{changed} changed", grace=found.grace, env=env)

    with changes.tried_out(lambda: _try_out([*command, "--log-level=warning"], env, apart=True), restart):
        return supervisor.run()


def _try_out(command: Sequence[str], env: Mapping[str, str], *, apart: bool = False) -> subprocess.Popen[bytes]:
    """Start a trial process. `apart`: Ctrl-C in a terminal does not reach it."""
    return subprocess.Popen(
        [*command, "--tried-out"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=apart
    )


def _read_report(tried_out: subprocess.Popen[bytes]) -> _Report | None:
    """Wait for the end of a trial process, and return its report."""
    with tried_out:
        assert tried_out.stdout is not None
        line = tried_out.stdout.readline()
        tried_out.wait()  # before its stdin is closed, which would end it early
    return _Report(**json.loads(line)) if line else None


def _arguments(config: Config, options: WorkOptions) -> list[str]:
    """The command line of a worker process with these options, without URLs, which are in its environment."""
    values = asdict(options) | {
        "processes": 1, "supervised": True, "listen_url": None, "pin": False, "metrics_port": None,
        "app": config.app or [""], "schema": config.schema, "embedded_dir": config.embedded_dir,
        "log_level": config.log_level, "debug": config.debug,
    }  # fmt: skip
    line: list[str] = []
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        if value is None or (value is False and name != "listen"):
            continue
        if isinstance(value, bool):
            line.append(option if value else f"--no-{name}")
        else:
            several: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value]
            line += [f"{option}={item}" for item in several]
    return line


def _environment(database: str | None, direct: str | None) -> dict[str, str]:
    """The environment of worker processes, with the URLs, because every user can read a command line."""
    urls = {f"{PREFIX}DATABASE_URL": database, f"{PREFIX}LISTEN_URL": direct}
    return {**os.environ, **{name: url for name, url in urls.items() if url is not None}}


@contextmanager
def reporting(wanted: bool) -> Generator[Callable[[Worker, bool], None]]:
    """A function that reports the worker to the supervisor on stdout. All other output goes to stderr meanwhile."""
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
    """The processor cores that this process may use. Raises ConfigurationError if the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        raise ConfigurationError(
            f"--pin: processes cannot be kept on a core on {sys.platform}, only on Linux: leave it out"
        )
    return sorted(os.sched_getaffinity(0))


def say_less() -> None:
    """In a worker process that is often restarted: do not log its start and end, which the supervisor logs."""
    for module in (serving, worker):
        logging.getLogger(module.__name__).setLevel(logging.WARNING)
