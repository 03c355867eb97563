"""What commands write on stderr: errors on one line, and logs; never a password."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import typer

from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.failures import entry, error_text, message_of, name_of, traceback_of
from sa_jobqueue.log import escaped, one_line, place_of
from sa_jobqueue.urls import mask_passwords, not_connected

from .config import LogLevel

__all__ = ["expected_errors", "explained", "fail", "plain_errors", "say_error", "set_up_logging"]


@contextmanager
def plain_errors(debug: bool = False) -> Generator[None]:
    """Turn expected errors into one line on stderr and exit code 2; let all others pass."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, expected_errors()):
            raise
        if debug:
            sys.stderr.write(mask_passwords("".join(traceback.format_exception(error))))
        say_error(explained(error))
        raise typer.Exit(2) from error


def explained(error: Exception) -> str:
    """An expected error as one sentence for the operator."""
    if isinstance(error, UnicodeEncodeError):  # an argument in another encoding than the locale's
        return f"this is no Unicode text: {error.object[:80]!r}"
    reason: object = error
    if "sqlalchemy" in sys.modules:
        from sqlalchemy.exc import DBAPIError

        reason = error.orig if isinstance(error, DBAPIError) else error
    if "psycopg" not in sys.modules:
        return str(error)
    from psycopg import Error, OperationalError, errors

    match reason:
        case OperationalError(sqlstate=None):
            return not_connected(reason)
        case OperationalError(sqlstate=str() as code) if code[:2] in {"08", "57"}:
            return f"the database ended the connection: {reason}"
        case errors.InsufficientPrivilege():
            return f"the database refused: {reason}: sa-jobqueue grants --help says how a role gets the rights it needs"
        case errors.UndefinedTable() | errors.InvalidSchemaName():
            return f"the database refused: {reason.diag.message_primary}: `sa-jobqueue migrate` makes the job tables"
        case errors.UniqueViolation(diag=said) if said.message_detail is None:
            return f"the database refused: {said.message_primary}"  # of a unique job: without the trigger's context
        case Error():
            return f"the database refused: {reason}"
        case _:
            return str(error)


def expected_errors() -> tuple[type[Exception], ...]:
    """The classes of expected errors. A package that is not loaded has raised none, and loading it takes time."""
    kinds: list[type[Exception]] = [JobQueueError, UnicodeEncodeError]
    if "sqlalchemy" in sys.modules:
        from sqlalchemy.exc import SQLAlchemyError

        kinds.append(SQLAlchemyError)
    if "psycopg" in sys.modules:
        from psycopg import Error

        kinds.append(Error)
    return tuple(kinds)


def fail(message: str, code: int = 2) -> NoReturn:
    """End the command with one line on stderr."""
    say_error(message)
    raise typer.Exit(code)


def say_error(message: str) -> None:
    """Write one line on stderr, without passwords."""
    sys.stderr.write(f"error: {one_line(mask_passwords(message))}\n")
    sys.stderr.flush()  # Click's runner before 8.2 reads stderr without flushing it


class _Formatter(logging.Formatter):
    """A record as one line, without passwords; of an exception its type, its message and the place.

    `tracebacks`: below it the whole of one, each line with a mark that no record has.
    """

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        record.message = one_line(mask_passwords(record.getMessage()))
        record.asctime = self.formatTime(record, self.datefmt)
        line, below = self.formatMessage(record), record.stack_info or ""
        if record.exc_info and (error := record.exc_info[1]) is not None:
            described = entry(name_of(type(error)), message_of(error))
            module, dot, name = described.type.rpartition(".")
            said = one_line(mask_passwords(error_text(name, described.message)))
            if said not in line:
                reason = f"{module}{dot}{said}"
                place = place_of(error, anywhere=True)
                line = f"{line}: {reason}" + (f" ({escaped(place)})" if place else "")
            below = f"{traceback_of(error, error.__traceback__) if self._tracebacks else ''}{below}"
        if self._tracebacks:
            line += "".join(f"\n    | {escaped(one)}" for one in mask_passwords(below).splitlines())
        return line


class _Handler(logging.StreamHandler[Any]):
    """Writes to the stderr of the moment, which tests replace."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(_Formatter(tracebacks=tracebacks))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Say on stderr, as `logging` does, what could not be written and why."""
        said = f"Logged in {record.pathname}, line {record.lineno}: {record.msg!r}, arguments {record.args!r}\n"
        with suppress(OSError):
            sys.stderr.write(mask_passwords(f"--- Logging error ---\n{traceback.format_exc()}{said}"))


def set_up_logging(level: LogLevel) -> None:
    """Log on stderr from `level` up, in place of what an earlier call set up."""
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _Handler)]:
        root.removeHandler(handler)
    root.addHandler(_Handler(tracebacks=level is LogLevel.DEBUG))
    root.setLevel(level.value.upper())
