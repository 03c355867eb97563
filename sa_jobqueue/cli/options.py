"""Options of commands, as fields of a dataclass: each is declared once, with its type, its default and its help.

    @dataclass(frozen=True)
    class Paging(Options):
        limit: Annotated[int, typer.Option(min=1, help="At most this many jobs.")] = 50
        page: Annotated[int, setting(help="Jobs in a page.")] = 10  # also SA_JOBQUEUE_PAGE

A command that has a parameter of such a class takes all of its options. A field without a `typer.Option`, a
`typer.Argument` or a `setting` is no option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from inspect import Parameter
from typing import Annotated, Any, Self, get_args, get_type_hints

import typer

from sa_jobqueue.durations import read_duration, seconds_of

__all__ = [
    "PREFIX",
    "Json",
    "Key",
    "Options",
    "Units",
    "parse_duration",
    "parse_id",
    "parse_moment",
    "parse_workflow",
    "setting",
]

#: What the names of our environment variables begin with.
PREFIX = "SA_JOBQUEUE_"

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

# Of jobs that are made by hand.
Key = Annotated[str | None, typer.Option(metavar="KEY", help="By which jobs are ordered, limited and served in turn.")]
Units = Annotated[int | None, typer.Option(metavar="N", help="How much of a rate a job takes. Default: 1.")]


def setting(*names: str, **said: Any) -> partial[Any]:
    """A `typer.Option` that the environment and pyproject.toml may set, too, by the name of the field."""
    return partial(typer.Option, *names, **said)


@dataclass(frozen=True)
class Options:
    """The base of classes whose fields are options."""

    @classmethod
    def declared(cls) -> Mapping[str, tuple[Any, Any]]:
        """The options as Typer takes them: by name, an annotation and a default; `Parameter.empty` for one that must be given."""
        hints = get_type_hints(cls, include_extras=True)
        found: dict[str, tuple[Any, Any]] = {}
        for one in fields(cls):
            kind, *details = get_args(hints[one.name]) or (None,)
            if getattr(hints[one.name], "__metadata__", None) is None:
                continue
            (option,) = details
            if isinstance(option, partial):
                option = option(envvar=f"{PREFIX}{one.name.upper()}")
            default = one.default if one.default_factory is MISSING else one.default_factory()
            if default is MISSING:
                default = Parameter.empty
            found[one.name] = Annotated[kind, option], default
        return found

    @classmethod
    def from_options(cls, **given: Any) -> Self:
        """The values that Typer found."""
        return cls(**given)


# ---- how values are read


def parse_duration(text: str | timedelta) -> timedelta:
    """`text` as a duration: "90" seconds, "45s", "10m", "2h", "3d", "1w", "1h30m". For Typer: `parser=parse_duration`."""
    try:
        duration = text if isinstance(text, timedelta) else read_duration(text)
        seconds_of(duration, what="a duration")
        return duration
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def parse_moment(text: str, zone: tzinfo | None = None) -> datetime | timedelta:
    """`text` as a time, which is in `zone` (None: this machine's) if it names none; or as a duration, as `parse_duration` reads it."""
    try:
        time = datetime.fromisoformat(text)
        return (time.replace(tzinfo=zone) if time.tzinfo is None and zone is not None else time).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    try:
        return parse_duration(text)
    except typer.BadParameter:
        raise typer.BadParameter(
            f"{text!r} is neither a time, as in 2030-01-31 or 2030-01-31T09:00+01:00, nor a duration, as in 45s, 10m, 2h, 3d"
        ) from None


def parse_id(text: str | int) -> int:
    """`text` as the number of a job. For Typer: `parser=parse_id`."""
    return _parse_number(text, "a job's number")


def parse_workflow(text: str | int) -> int:
    """`text` as the number of a workflow. For Typer: `parser=parse_workflow`."""
    return _parse_number(text, "a workflow's number")


def _parse_number(text: str | int, what: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 2**63
    if not -(2**63) <= number < 2**63:
        raise typer.BadParameter(
            f"{str(text)[:80]!r} is not {what}: expected a whole number of at most 19 digits, as 17"
        )
    return number
