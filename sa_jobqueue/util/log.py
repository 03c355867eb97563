r"""Log lines that no job can break: line ends and escape sequences in its names and exceptions are made harmless.

>>> print(one_line("no such order\n12:00:00 INFO all is well\x1b[2J"))
no such order 12:00:00 INFO all is well\x1b[2J
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path, PurePath
from types import FrameType
from typing import Any

_OURS, _STANDARD = (f"{Path(file).parent}{os.sep}" for file in (__file__, os.__file__))


def escaped(text: str, *, keep: str = "") -> str:
    """`text` with each character escaped that is neither printable nor in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode()
        for letter in text
    )


def one_line(text: str) -> str:
    """`text` on one line: each run of white space becomes a space, and control characters are escaped."""
    return escaped(" ".join(text.split()))


def get_logger(name: str) -> logging.Logger:
    """The logger of one of our modules. Each message is one line, and logging raises nothing, whichever filters and handlers
    the application has.
    """
    logger = logging.getLogger(name)
    logger.addFilter(_keep_on_one_line)
    logger.handle = partial(_handle, logger)  # type: ignore[method-assign]
    return logger


def enable_loggers() -> None:
    """Undo what `logging.config.dictConfig` and `fileConfig` do by default to loggers that they do not name: disable them, ours too."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.partition(".")[0] == "sa_jobqueue" and isinstance(logger, logging.Logger):
            logger.disabled = False


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    """In place of the logger's own method. A filter that raised would break off what the message is about: half-done, a claimed
    job would be held and never run, or an outcome never written.
    """
    try:
        type(logger).handle(logger, record)
    except KeyboardInterrupt:
        raise
    except BaseException:
        with suppress(Exception):
            logging.Handler().handleError(record)  # on stderr, unless `logging.raiseExceptions` is unset


class _OneLine:
    """An argument of a message, shown on one line. The template is kept, because error trackers group by it."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return one_line(str(self._value))

    def __repr__(self) -> str:
        return escaped(repr(self._value))


def _keep_on_one_line(record: logging.LogRecord) -> bool:
    # The str() of an application's exception may fail: then the handler reports it, with its place.
    with suppress(Exception):
        if isinstance(record.args, tuple) and not record.getMessage().isprintable():
            record.args = tuple(map(_said, record.args))
    return True


def _said(value: Any) -> Any:
    # Text on one line stays as it is, with the space at its beginning that divides it from the text before it.
    harmless = isinstance(value, (int, float)) or (isinstance(value, str) and value.isprintable())
    return value if harmless else _OneLine(value)


def place_of(error: BaseException, *, package: str = "", anywhere: bool = False) -> str:
    """Where in the application's code `error` was raised: "shop/tasks.py, line 12, in send_receipt", the last such frame.

    Code belongs to the application if it is neither Python's, nor ours, nor installed, or if it is in the top-level
    `package`. Without such a frame: "", or with `anywhere` the last frame of all.
    """
    found = last = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        last = frame.f_code, line
        named = package and str(frame.f_globals.get("__name__")).partition(".")[0] == package
        if named or _is_application(_file_of(frame)):
            found = last
    if found is None and anywhere:
        found = last
    if found is None:
        return ""
    code, line = found
    return f"{_importable(code.co_filename)}, line {line}, in {code.co_name}"


def _file_of(frame: FrameType) -> str:
    """The file of its code. Cython writes a relative path there, so for that it is the file of the compiled module."""
    file = frame.f_code.co_filename
    compiled = not (file.startswith("<") or PurePath(file).is_absolute())
    return str(frame.f_globals.get("__file__") or file) if compiled else file


@lru_cache(maxsize=1_000)
def _is_application(file: str) -> bool:
    parts = PurePath(file).parts
    installed = "site-packages" in parts or "dist-packages" in parts
    return not (installed or file.startswith(("<", _OURS, _STANDARD)))


def _importable(file: str) -> str:
    """A file as seen from the folder that it is imported from."""
    folders = [folder + os.sep for folder in sys.path if folder and file.startswith(folder + os.sep)]
    return file.removeprefix(max(folders, key=len, default=""))
