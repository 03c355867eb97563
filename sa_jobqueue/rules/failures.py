"""A failed attempt as text, within milliseconds for any exception.

>>> describe(KeyError("order")).message
"'order'"

Python would format everything: 50,000 chained causes take it 20 seconds, and a traceback of 50,000 frames or a note of a
million lines more than a second. The event loop would stand still meanwhile, and only the end of the text is kept.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Container
from datetime import datetime
from types import TracebackType

from .outcomes import ErrorEntry

#: Entries kept in `Job.errors`; the oldest go first. With the two lengths below a job's errors stay under 250 kB.
MAX_ERRORS = 20
#: Characters kept of an exception's message.
MAX_MESSAGE = 2_000
#: Characters kept of a traceback: its end, where the reason is.
MAX_TRACEBACK = 8_000

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

#: Exceptions, frames and characters that Python formats in about 20 ms (November 2026). RecursionError comes after 1,000
#: frames.
_EXCEPTIONS, _FRAMES, _LENGTH = 200, 2_000, 200_000
#: Of a larger exception these are shown: the nearest exceptions of its chain, each with its last frames.
_NEAREST, _LAST_FRAMES = 20, 50


def describe(exception: BaseException, *, hide: Container[str] = ()) -> ErrorEntry:
    """The entry for `Job.errors` that records `exception`.

    `hide`: files whose frames are left out at the beginning of the traceback, because they say nothing about the handler.
    """
    try:
        frames = exception.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename in hide:
            frames = frames.tb_next
        trace = traceback_of(exception, frames)
    except BaseException:
        trace = ""
    return entry(name_of(type(exception)), message_of(exception), trace)


def entry(type: str, message: str, traceback: str = "") -> ErrorEntry:
    """An entry for `Job.errors` that PostgreSQL can store: its texts are cut to their greatest length, and cleaned."""
    end = traceback if len(traceback) <= MAX_TRACEBACK else "…" + traceback[-(MAX_TRACEBACK - 1) :]
    return ErrorEntry(clean(type[:200]), clean(_cut(message)), clean(end))


def error_text(type: object, message: object) -> str:
    """An error in words, as Python prints it: "ValueError: bad", or its class alone if it has no message."""
    return f"{type}: {message}" if message else f"{type}"


def clean(text: str) -> str:
    """`text` without NUL and lone surrogates, which PostgreSQL cannot store; both become U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def name_of(kind: type[BaseException]) -> str:
    """The class's name, with its module unless it is a builtin."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def moment_said(value: object) -> datetime | None:
    """The time in an entry of `Job.errors`. None: there is none, because the application has written there, too."""
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def message_of(exception: BaseException) -> str:
    """The result of `str()`, which runs the application's code and may fail."""
    try:
        return str(exception)
    except BaseException as error:
        return f"<str() of the exception failed: {type(error).__name__}>"


def traceback_of(exception: BaseException, frames: TracebackType | None) -> str:
    """The text that Python would print, with a traceback that begins at `frames`; only the nearest part of a large exception."""
    if is_quick_to_format(exception):
        return "".join(traceback.format_exception(type(exception), exception, frames))
    return _nearest(exception, frames)


def is_quick_to_format(exception: BaseException) -> bool:
    """Whether Python formats the whole exception within milliseconds, as a logger does with an exception."""
    seen: set[int] = set()
    waiting = [exception]
    frames = length = 0
    while waiting:
        error = waiting.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        trace = error.__traceback__
        while trace is not None and frames <= _FRAMES:
            frames, trace = frames + 1, trace.tb_next
        length += len(message_of(error)) + _length_of_notes(error)
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions[: _EXCEPTIONS + 1]
        waiting += [linked for linked in (error.__cause__, error.__context__) if linked is not None]
        if len(seen) + len(waiting) > _EXCEPTIONS or frames > _FRAMES or length > _LENGTH:
            return False
    return True


def _length_of_notes(exception: BaseException) -> int:
    notes = getattr(exception, "__notes__", ())
    if not isinstance(notes, (list, tuple)) or len(notes) > _LENGTH:
        return _LENGTH + 1 if notes else 0
    # A note that is no text could be of any length, which only its own __str__ knows.
    return sum(1 + len(note) if isinstance(note, str) else _LENGTH + 1 for note in notes)


def _nearest(exception: BaseException, frames: TracebackType | None) -> str:
    parts: list[str] = []
    error, trace = exception, frames
    for _ in range(_NEAREST):
        stack = traceback.TracebackException(Exception, Exception(), _last(trace)).stack.format()
        shown = error_text(name_of(type(error)), _cut(message_of(error)))
        parts.append(f"Traceback (most recent call last):\n{''.join(stack)}{shown}\n")
        if isinstance(error, BaseExceptionGroup):
            linked, how = error.exceptions[0], f"\nThe first of {len(error.exceptions)} exceptions in the group:\n\n"
        elif error.__cause__ is not None:
            linked, how = error.__cause__, "\nThe above exception was the direct cause of the following exception:\n\n"
        elif error.__context__ is not None and not error.__suppress_context__:
            linked, how = error.__context__, "\nDuring handling of the above exception, another exception occurred:\n\n"
        else:
            break
        parts.append(how)
        error, trace = linked, linked.__traceback__
    return "".join(reversed(parts))


def _last(trace: TracebackType | None) -> TracebackType | None:
    """The last frames of the traceback."""
    last = ahead = trace
    for _ in range(_LAST_FRAMES):
        ahead = None if ahead is None else ahead.tb_next
    while ahead is not None and last is not None:
        last, ahead = last.tb_next, ahead.tb_next
    return last


def _cut(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
