"""What `work --reload` watches: the Python files of the application, as an editor saves them."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.log import get_logger
from sa_jobqueue.worker.process.signals import start_deaf

from .config import working_folder

__all__ = ["Changes", "watched_folders"]

logger = get_logger(__name__)

#: Milliseconds between two looks at the process that tries the changes out.
_LOOK = 100
_NOT_THE_APPLICATION = {"__pycache__", "node_modules", "site-packages"}

TryOut = Callable[[], "subprocess.Popen[bytes]"]
Ended = Callable[[str, "subprocess.Popen[bytes]"], None]


class Changes:
    """Changes of the Python files of the application whose modules have these names, as `--app` takes them.

    They count from here on. Raises ConfigurationError where nothing can be watched.
    """

    def __init__(self, names: Sequence[str]) -> None:
        try:
            from watchfiles import watch
        except ImportError as error:
            raise ConfigurationError(
                '--reload needs watchfiles: install it with `python -m pip install "sa_jobqueue[reload]"`'
            ) from error
        logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it would say each change, too
        self._folders = watched_folders(names)
        self._stopping = threading.Event()
        self._batches = watch(
            *self._folders,
            watch_filter=lambda change, path: self._is_source(Path(path)),
            stop_event=self._stopping,
            rust_timeout=_LOOK,
            yield_on_timeout=True,
        )
        watched = " and ".join(map(str, self._folders))
        try:
            next(self._batches)
        except (OSError, RuntimeError) as error:  # too many folders for the system, or no rights
            raise ConfigurationError(f"--reload: {watched} cannot be watched: {error}") from error
        logger.info("restarting when a Python file in %s changes", watched)

    @contextmanager
    def tried_out(self, start: TryOut, ended: Ended) -> Generator[None]:
        """While this lasts, let `start` a process try out each change, and call `ended` with what has changed and the process.

        A process that still runs at the next change is killed. Both are called on a thread.
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
            for batch in self._batches:  # an empty one after each `_LOOK`
                if batch:
                    changed |= {Path(path) for _, path in batch}
                    _kill(process)
                    process = start()
                elif process is not None and process.poll() is not None:
                    ended(_described(changed), process)
                    process, changed = None, set[Path]()
        except Exception as error:  # of the system
            logger.error("files are watched no more, and changes do not restart the workers: %r", error)
        finally:
            _kill(process)

    def _is_source(self, file: Path) -> bool:
        below = next((file.relative_to(one).parts for one in self._folders if file.is_relative_to(one)), ())
        return file.suffix == ".py" and not any(part.startswith(".") or part in _NOT_THE_APPLICATION for part in below)


def watched_folders(names: Iterable[str]) -> list[Path]:
    """The working directory, which is searched first; in place of it the folder of an application that is elsewhere."""
    here = working_folder()
    found = {here if folder is None or folder.is_relative_to(here) else folder for folder in map(_folder_of, names)}
    found = found or {here}
    return sorted(one for one in found if not any(one != other and one.is_relative_to(other) for other in found))


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
