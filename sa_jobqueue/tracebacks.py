"""An exception as text, within milliseconds whatever it brings along.

Python formats all of it: 50,000 chained causes take it 20 seconds, a traceback of 50,000 frames or a note of a million lines
more than one. It is done on the event loop, and of the text only the end is kept.
"""

from __future__ import annotations

import traceback
from types import TracebackType

__all__ = ["is_modest", "message_of", "name_of", "text_of"]

#: Exceptions, frames and characters up to which Python formats all in some 20 ms; November 2026. RecursionError comes after
#: 1,000 frames.
_EXCEPTIONS, _FRAMES, _LENGTH = 200, 2_000, 200_000
#: Of what has more: exceptions, each with the last of its frames, and the first characters of its message.
_NEAREST, _LAST_FRAMES, _HEAD = 20, 50, 2_000


def name_of(kind: type[BaseException]) -> str:
    """The class, qualified where it is not a builtin one."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def message_of(exception: BaseException) -> str:
    """What `str()` says, which is the application's code and may fail."""
    try:
        return str(exception)
    except BaseException as error:
        return f"<str() of the exception failed: {type(error).__name__}>"


def text_of(exception: BaseException, frames: TracebackType | None) -> str:
    """What Python would print, for a traceback that begins with `frames`; of what is immodest, what is nearest to it."""
    if is_modest(exception):
        return "".join(traceback.format_exception(type(exception), exception, frames))
    return _nearest(exception, frames)


def is_modest(exception: BaseException) -> bool:
    """Whether Python formats it within milliseconds, as a log does that is given it."""
    seen: set[int] = set()
    waiting = [exception]
    frames = length = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        trace = one.__traceback__
        while trace is not None and frames <= _FRAMES:
            frames, trace = frames + 1, trace.tb_next
        length += len(message_of(one)) + _length_of_notes(one)
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions[: _EXCEPTIONS + 1]
        waiting += [linked for linked in (one.__cause__, one.__context__) if linked is not None]
        if len(seen) + len(waiting) > _EXCEPTIONS or frames > _FRAMES or length > _LENGTH:
            return False
    return True


def _length_of_notes(exception: BaseException) -> int:
    notes = getattr(exception, "__notes__", ())
    if not isinstance(notes, (list, tuple)) or len(notes) > _LENGTH:
        return _LENGTH + 1 if notes else 0
    # What is no text could be of any length, which only its own __str__ knows.
    return sum(1 + len(note) if isinstance(note, str) else _LENGTH + 1 for note in notes)


def _nearest(exception: BaseException, frames: TracebackType | None) -> str:
    parts: list[str] = []
    one, trace = exception, frames
    for _ in range(_NEAREST):
        stack = traceback.TracebackException(Exception, Exception(), _last(trace)).stack.format()
        message = message_of(one)
        shown = message if len(message) <= _HEAD else message[:_HEAD] + "…"
        parts.append(f"Traceback (most recent call last):\n{''.join(stack)}{name_of(type(one))}: {shown}\n")
        if isinstance(one, BaseExceptionGroup):
            linked, how = one.exceptions[0], f"\nThe first of {len(one.exceptions)} exceptions in the group:\n\n"
        elif one.__cause__ is not None:
            linked, how = one.__cause__, "\nThe above exception was the direct cause of the following exception:\n\n"
        elif one.__context__ is not None and not one.__suppress_context__:
            linked, how = one.__context__, "\nDuring handling of the above exception, another exception occurred:\n\n"
        else:
            break
        parts.append(how)
        one, trace = linked, linked.__traceback__
    return "".join(reversed(parts))


def _last(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from its last frames on."""
    last = ahead = trace
    for _ in range(_LAST_FRAMES):
        ahead = None if ahead is None else ahead.tb_next
    while ahead is not None and last is not None:
        last, ahead = last.tb_next, ahead.tb_next
    return last
