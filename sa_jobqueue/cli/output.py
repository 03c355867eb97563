"""The output of commands: tables for people, plain columns for pipes, JSON for scripts; errors and logs.

Control characters in values from the database are escaped, because even a queue's name may contain any.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TextIO
from uuid import UUID

import typer

from ..errors import ConfigurationError, JobQueueError
from ..rules.failures import entry, error_text, message_of, name_of, traceback_of
from ..util.log import escaped, one_line, place_of
from ..util.urls import mask_passwords, not_connected
from .config import LogLevel

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


Rows = Iterable[Sequence[object]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    In a narrow terminal, `shortened` first shortens its cells; then an `optional` column is omitted; then a `wide` column is
    cut and a `wrapped` column is broken between words, to no less than `least` characters.
    """

    name: str
    justify: Literal["left", "right"] = "left"
    wide: bool = False
    wrapped: bool = False
    least: int = 1
    optional: bool = False
    shortened: Callable[[str], str] | None = None


def print_table(
    columns: Sequence[Column],
    rows: Rows,
    *,
    styles: Sequence[str] = (),
    rule: bool = True,
    narrow: tuple[Sequence[Column], Rows] | None = None,
) -> None:
    """Print a table: fitted into a terminal, or in full as plain columns. `styles`: the style of each row. `rule`: see `fitted`.

    `narrow`: alternative columns and rows for a terminal that is too narrow.
    """
    cells = [[cleaned(value) for value in row] for row in rows]
    if (console := terminal(sys.stdout)) is None:
        sys.stdout.write(_plain(columns, cells))
        return
    if narrow is not None and not _fits(columns, cells, console.width, 2 if rule else 1):
        columns = narrow[0]
        keeps = ["\n" if column.wrapped else "" for column in columns]
        cells = [[cleaned(value, keep=keep) for value, keep in zip(row, keeps, strict=True)] for row in narrow[1]]
    console.print(fitted(columns, cells, styles, console.width, rule=rule))


def fitted(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], styles: Sequence[str], width: int, *, rule: bool = True
) -> Table:
    """A table that is not wider than `width`. `rule`: with a line below the headings, and two spaces between columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    gap = 2 if rule else 1
    if not _fits(columns, cells, width, gap):
        cells = [
            [column.shortened(cell) if column.shortened else cell for column, cell in zip(columns, row, strict=True)]
            for row in cells
        ]
    if not _fits(columns, cells, width, gap):
        cells = [[cell for column, cell in zip(columns, row, strict=True) if not column.optional] for row in cells]
        columns = [column for column in columns if not column.optional]
    table = Table(box=box.SIMPLE_HEAD if rule else None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column, needed in zip(columns, _widths(columns, cells), strict=True):
        title = Text(column.name, style="bold", no_wrap=True, overflow="ellipsis")
        least = min(column.least, needed)
        table.add_column(title, justify=column.justify, no_wrap=not (column.wide or column.wrapped), min_width=least)
    for number, row in enumerate(cells):
        style = styles[number] if styles else ""
        table.add_row(
            *(
                Text(cell, style=style, no_wrap=not column.wrapped, overflow="fold" if column.wrapped else "ellipsis")
                for column, cell in zip(columns, row, strict=True)
            )
        )
    return table


def watch_table(columns: Sequence[Column], read: Callable[[int], tuple[Rows, Sequence[str]]], *, every: float) -> None:
    """Show a table over the whole terminal, and read it again after `every` seconds, until Ctrl-C.

    `read` takes the number of rows that fit, and returns rows and styles. Raises ConfigurationError without a terminal.
    """
    if (console := terminal(sys.stdout)) is None:
        raise ConfigurationError("--watch needs a terminal to write to")
    from rich.live import Live

    with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            rows, styles = read(max(console.height - 3, 1))
            cells = [[cleaned(value) for value in row] for row in rows]
            live.update(fitted(columns, cells, styles, console.width), refresh=True)
            time.sleep(every)


def _fits(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int, gap: int) -> bool:
    return sum(_widths(columns, cells)) + gap * (len(columns) - 1) <= width


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
    """The width that each column needs."""
    return [max([len(column.name), *(len(row[position]) for row in cells)]) for position, column in enumerate(columns)]


def _plain(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> str:
    lines = [[column.name.upper() for column in columns], *cells]
    widths = _widths(columns, cells)
    return "".join(
        "  ".join(
            cell.rjust(width) if column.justify == "right" else cell.ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )


def print_json(value: object) -> None:
    """Print indented JSON; times in ISO 8601. Control characters are escaped, because a terminal would obey them."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_encoded)
    sys.stdout.write(re.sub(r"[^\n -~]", lambda found: escaped_as_json(found[0]), text) + "\n")


def escaped_as_json(letter: str) -> str:
    """A letter as it stands in a JSON string: escaped unless it is printable."""
    return letter if letter.isprintable() else json.dumps(letter)[1:-1]


def _encoded(value: object) -> str:
    match value:
        case datetime():
            return value.isoformat()
        case UUID() | Path():
            return str(value)
        case _:
            raise TypeError(f"{type(value).__name__} is not for JSON")


def say(text: str, style: str = "", *, wrap: bool = False) -> None:
    """Print lines on stdout; in a terminal with a style, and with `wrap` broken between words."""
    _write(sys.stdout, cleaned(text, keep="\n\t"), style, wrap=wrap)


def note(text: str) -> None:
    """Print a line on stderr that is not part of the result."""
    _write(sys.stderr, cleaned(text), "dim")


def _write(stream: TextIO, text: str, style: str, *, wrap: bool = False) -> None:
    if (console := terminal(stream)) is None:
        stream.write(f"{text}\n")
        if stream is sys.stderr:
            stream.flush()  # Click's runner before 8.2 reads stderr without flushing it
        return
    from rich.text import Text

    console.print(Text(text, style=style), soft_wrap=not wrap)


def terminal(stream: TextIO) -> Console | None:
    """Rich's console on a stream that is, or should be taken for, a terminal; None for any other stream, which needs no Rich."""
    if not stream.isatty() and {"FORCE_COLOR", "TTY_COMPATIBLE"}.isdisjoint(os.environ):
        return None
    from rich.console import Console

    console = Console(file=stream, highlight=False)
    return console if console.is_terminal else None


def cleaned(value: object, *, keep: str = "") -> str:
    """`value` as text with control characters escaped, except those in `keep`; None is nothing."""
    return escaped("" if value is None else str(value), keep=keep)


def last_part(name: str) -> str:
    """A dotted name without its module, for narrow columns: shop.send_receipt as send_receipt."""
    return name.rpartition(".")[2]


def rate(number: float) -> str:
    """A rate with few digits: 0, 0.25, 7.5, 740, 12,300."""
    return f"{number:,.0f}" if number >= 10 or number == 0 else f"{number:.1f}" if number >= 1 else f"{number:.2g}"


def moment(time: datetime | None) -> str:
    """A time in the zone of this machine, to the second."""
    return "" if time is None else time.astimezone().isoformat(sep=" ", timespec="seconds")


# ---- Errors and logs on stderr, without passwords.


@contextmanager
def plain_errors(debug: bool = False) -> Generator[None]:
    """Turn expected errors into one line on stderr and exit code 2; other errors are not caught."""
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
            return f"the database refused: {reason}: sa-jobqueue grants --help explains how a role gets the rights it needs"
        case errors.UndefinedTable() | errors.InvalidSchemaName():
            return f"the database refused: {reason.diag.message_primary}: `sa-jobqueue migrate` makes the job tables"
        case errors.UniqueViolation(diag=details) | errors.InvalidParameterValue(diag=details) if (
            details.message_detail is None
        ):
            return f"the database refused: {details.message_primary}"  # raised by our triggers and functions: leave out the context
        case Error():
            return f"the database refused: {reason}"
        case _:
            return str(error)


def expected_errors() -> tuple[type[Exception], ...]:
    """The classes of expected errors. Packages that are not loaded cannot have raised errors, and loading them takes time."""
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
    """Formats a record as one line, without passwords, with the type, message and place of its exception.

    `tracebacks`: the traceback follows, each line with a mark that no record has.
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
            text = one_line(mask_passwords(error_text(name, described.message)))
            if text not in line:
                place = place_of(error, anywhere=True)
                line = f"{line}: {module}{dot}{text}" + (f" ({escaped(place)})" if place else "")
            below = f"{traceback_of(error, error.__traceback__) if self._tracebacks else ''}{below}"
        if self._tracebacks:
            line += "".join(f"\n    | {escaped(text)}" for text in mask_passwords(below).splitlines())
        return line


class _Handler(logging.StreamHandler[Any]):
    """Writes to the current sys.stderr, which tests replace."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(_Formatter(tracebacks=tracebacks))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Write on stderr, as `logging` does, which record could not be written and why."""
        text = f"Logged in {record.pathname}, line {record.lineno}: {record.msg!r}, arguments {record.args!r}\n"
        with suppress(OSError):
            sys.stderr.write(mask_passwords(f"--- Logging error ---\n{traceback.format_exc()}{text}"))


def set_up_logging(level: LogLevel) -> None:
    """Log on stderr from `level` up, instead of at the level of an earlier call."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(handler)
    root.addHandler(_Handler(tracebacks=level is LogLevel.DEBUG))
    root.setLevel(level.value.upper())
