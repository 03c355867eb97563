"""The log lines that are kept of a job, as `show` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sa_jobqueue.urls import mask_passwords

from .output import cleaned, note, print_json, say

__all__ = ["show_last_lines", "show_lines"]

_LEVELS = {"DEBUG": "dim", "WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}

#: Log lines that `show` prints unless all are asked for.
_LAST_LINES = 20


def show_lines(lines: Sequence[Any], *, json: bool) -> None:
    """All of them, without the rest."""
    if json:
        print_json([line._asdict() | {"message": mask_passwords(line.message)} for line in lines])
    elif lines:
        _print_lines(lines)
    else:
        note("no log lines are kept of it: a task keeps them with @task(keep_logs=True)")


def _print_lines(lines: Sequence[Any]) -> None:
    attempt = None
    for line in lines:
        if line.attempt != attempt:
            attempt = line.attempt
            say(f"\nlog of attempt {attempt}", "bold")
        first, *more = cleaned(mask_passwords(line.message), keep="\n\t").split("\n")
        say(f"  {line.at.astimezone():%m-%d %H:%M:%S} {cleaned(line.level):<7} {first}", _LEVELS.get(line.level, ""))
        if more:
            say("\n".join(f"    {one}" for one in more), "dim")


def show_last_lines(lines: Sequence[Any]) -> None:
    """The last ones, behind all else that is shown of a job."""
    _print_lines(lines[-_LAST_LINES:])
    if len(lines) > _LAST_LINES:
        note(f"the last {_LAST_LINES} of {len(lines)} log lines; --logs shows all")
