"""What commands print: tables for people, plain columns for a pipe, JSON for scripts.

What comes from the database is shown with its control characters escaped: a queue's name may hold any.
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
    """A column of a table, and what happens to it where the terminal is narrow.

    `shortened` makes its cells shorter; then it is left out if it is `optional`; then it is cut if it is `wide`, or broken between
    words if it is `wrapped`, but not to less than `least`.
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
    """Print a table: fitted into a terminal, or in full as plain columns. `styles`: one for each row. `rule`: see `fitted`.

    `narrow`: the columns and rows that say the same where the terminal has no room for these.
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
    """A table that is not wider than `width`; what is cut ends with an ellipsis. `rule`: with a line below the headings, and two
    spaces between columns, not one.
    """
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


def watch_table(columns: Sequence[Column], look: Callable[[int], tuple[Rows, Sequence[str]]], *, every: float) -> None:
    """Show a table over the whole terminal, and again `every` seconds, until Ctrl-C.

    `look` is told how many rows fit, and returns rows and styles. Raises ConfigurationError without a terminal.
    """
    if (console := terminal(sys.stdout)) is None:
        raise ConfigurationError("--watch needs a terminal to write to")
    from rich.live import Live

    with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            rows, styles = look(max(console.height - 3, 1))
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
    """Print JSON, indented; times in ISO 8601. Control characters are escaped as JSON has it: a terminal would obey them."""
    said = json.dumps(value, indent=2, ensure_ascii=False, default=_encoded)
    sys.stdout.write(re.sub(r"[^\n -~]", lambda found: _escaped(found[0]), said) + "\n")


def _escaped(letter: str) -> str:
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
    text = cleaned(text, keep="\n\t")
    if (console := terminal(sys.stdout)) is None:
        sys.stdout.write(f"{text}\n")
        return
    from rich.text import Text

    console.print(Text(text, style=style), soft_wrap=not wrap)


def note(text: str) -> None:
    """Print a line on stderr that is no part of the result."""
    text = cleaned(text)
    if (console := terminal(sys.stderr)) is None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()  # Click's runner before 8.2 reads stderr without flushing it
        return
    from rich.text import Text

    console.print(Text(text, style="dim"), soft_wrap=True)


def terminal(stream: TextIO) -> Console | None:
    """Rich's console on a stream that is a terminal, or is to be taken for one; None for another, which needs no Rich."""
    if not stream.isatty() and {"FORCE_COLOR", "TTY_COMPATIBLE"}.isdisjoint(os.environ):
        return None
    from rich.console import Console

    console = Console(file=stream, highlight=False)
    return console if console.is_terminal else None


def cleaned(value: object, *, keep: str = "") -> str:
    """`value` as text with control characters escaped, except those in `keep`; None is nothing."""
    return escaped("" if value is None else str(value), keep=keep)


def last_part(name: str) -> str:
    """A dotted name without its module, where the whole has no place: shop.send_receipt as send_receipt."""
    return name.rpartition(".")[2]


def rate(number: float) -> str:
    """How often something happens: 0, 0.25, 7.5, 740, 12,300."""
    return f"{number:,.0f}" if number >= 10 or number == 0 else f"{number:.1f}" if number >= 1 else f"{number:.2g}"


def moment(time: datetime | None) -> str:
    """A time in the zone of this machine, to the second."""
    return "" if time is None else time.astimezone().isoformat(sep=" ", timespec="seconds")


# ---- What commands write on stderr: errors on one line, and logs; never a password.


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
