"""The settings of a command: options, then the environment (SA_JOBQUEUE_...), then [tool.sa_jobqueue] in pyproject.toml.

    [tool.sa_jobqueue]
    app = ["shop.tasks"]
    schema = "jobs"

The keys of that table are the names of the environment variables, without SA_JOBQUEUE_ and in lower case. It is read from the
nearest pyproject.toml, in the working directory or above.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Self, cast, get_args, get_type_hints

import typer

from ..errors import ConfigurationError
from ..rules.retry import read_duration, seconds_of
from ..util.schema import SCHEMA, quote
from .table import SETTINGS, SEVERAL

#: What the names of our environment variables begin with.
PREFIX = "SA_JOBQUEUE_"

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print how many jobs would be affected; change nothing.")]


def setting(*names: str, **details: Any) -> partial[Any]:
    """A `typer.Option` that the environment and pyproject.toml can set as well, by the name of the field."""
    return partial(typer.Option, *names, **details)


@dataclass(frozen=True)
class Options:
    """The base of classes whose fields are options."""

    @classmethod
    def declared(cls) -> Mapping[str, tuple[Any, Any]]:
        """The options as Typer takes them: by name, an annotation and a default; `Parameter.empty` if the option is required."""
        hints = get_type_hints(cls, include_extras=True)
        options: dict[str, tuple[Any, Any]] = {}
        for field_ in fields(cls):
            if getattr(hints[field_.name], "__metadata__", None) is None:
                continue
            kind, option = get_args(hints[field_.name])
            if isinstance(option, partial):
                option = option(envvar=f"{PREFIX}{field_.name.upper()}")
            default = field_.default if field_.default_factory is MISSING else field_.default_factory()
            options[field_.name] = Annotated[kind, option], Parameter.empty if default is MISSING else default
        return options

    @classmethod
    def from_options(cls, **given: Any) -> Self:
        """Make an instance from the values that Typer found."""
        return cls(**given)


# ---- Parsers of values.


def parse_duration(text: str | timedelta) -> timedelta:
    """Parse a duration: "90" seconds, "45s", "10m", "2h", "3d", "1w", "1h30m". A parser for Typer."""
    try:
        duration = text if isinstance(text, timedelta) else read_duration(text)
        seconds_of(duration, what="a duration")
        return duration
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


#: An option that takes a duration.
duration_option = partial(typer.Option, metavar="TIME", parser=parse_duration)


def parse_moment(text: str, zone: tzinfo | None = None) -> datetime | timedelta:
    """Parse a time, or a duration as `parse_duration` does. A time without a zone is in `zone`; None: this machine's."""
    with suppress(ValueError, OverflowError):
        time = datetime.fromisoformat(text)
        return (time.replace(tzinfo=zone) if time.tzinfo is None and zone is not None else time).astimezone(UTC)
    try:
        return parse_duration(text)
    except typer.BadParameter:
        raise typer.BadParameter(
            f"{text!r} is neither a time, as in 2030-01-31 or 2030-01-31T09:00+01:00, nor a duration, as in 45s, 10m, 2h, 3d"
        ) from None


def parse_id(text: str | int) -> int:
    """Parse the id of a job. A parser for Typer."""
    return _parse_id(text, "job")


def parse_workflow(text: str | int) -> int:
    """Parse the id of a workflow. A parser for Typer."""
    return _parse_id(text, "workflow")


def _parse_id(text: str | int, kind: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 2**63
    if not -(2**63) <= number < 2**63:
        raise typer.BadParameter(
            f"{str(text)[:80]!r} is not a {kind}'s id: expected a whole number of at most 19 digits, as in 17"
        )
    return number


JobId = Annotated[int, typer.Argument(metavar="ID", parser=parse_id, help="The job's id.")]

#: The variable in which many applications keep their database's URL; used where none of our own settings names a database.
DATABASE_URL = "DATABASE_URL"


class LogLevel(StrEnum):
    """The level from which messages are logged on stderr."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_database, _general = (partial(setting, rich_help_panel=panel) for panel in ("Database", "General"))


@dataclass(frozen=True)
class Config(Options):
    """Options that all commands share. Nothing below the commands reads the environment.

    The help shows defaults, also those from pyproject.toml, but not the database's URL, which may hold a password.
    """

    app: Annotated[
        list[str],
        setting(
            metavar="MODULE",
            help="Import this module, which declares the tasks; module:attribute names a Registry in it, a Worker, or "
            "a function that returns a Worker. Can be repeated, or be a list with commas. The working directory is "
            "searched first.",
            show_default=False,
        ),
    ] = field(default_factory=list)
    database_url: Annotated[
        str | None,
        _database(
            metavar="URL",
            help="postgresql://user:password@host:port/database. Default: DATABASE_URL in the environment, else the embedded PostgreSQL.",
            show_default=False,
        ),
    ] = field(default=None, repr=False)
    schema: Annotated[str, _database(metavar="NAME", help="The schema of the job tables.")] = SCHEMA
    embedded_dir: Annotated[
        Path | None,
        _database(
            metavar="FOLDER", help="The embedded PostgreSQL's folder. Default: one in your home.", show_default=False
        ),
    ] = None
    log_level: Annotated[
        LogLevel,
        _general(metavar="LEVEL", help="The least severe messages to log on stderr: debug, info, warning or error."),
    ] = LogLevel.WARNING
    debug: Annotated[bool, _general("--debug", help="Show tracebacks of errors.")] = False
    other_url: str | None = field(default=None, repr=False)
    """The value of DATABASE_URL, if none of our own settings names a database or the embedded server's folder."""

    @classmethod
    def from_options(cls, *, app: Sequence[str] = (), **given: Any) -> Self:
        """Make an instance from the values that Typer found; `app` may hold lists with commas. Raises ConfigurationError."""
        quote(given.get("schema", SCHEMA))  # refuses what cannot be a schema's name
        ours = given.get("database_url") is not None or given.get("embedded_dir") is not None
        other = None if ours else os.environ.get(DATABASE_URL) or None
        return cls(other_url=other, app=[name for part in ",".join(app).split(",") if (name := part.strip())], **given)

    @property
    def translate(self) -> dict[str | None, str | None]:
        """The `schema_translate_map` that finds our tables; empty if they are in the default schema."""
        return {} if self.schema == SCHEMA else {SCHEMA: self.schema}


def working_folder() -> Path:
    """Return the working directory; raises ConfigurationError if it is gone."""
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigurationError(f"the working directory cannot be used: {error.strerror}") from error


def defaults_from_pyproject(start: Path) -> dict[str, Any]:
    """Read the nearest pyproject.toml: values as their options take them, by the option's name.

    Raises ConfigurationError if the file cannot be read or has an unknown key.
    """
    file = next((found for folder in (start, *start.parents) if (found := folder / "pyproject.toml").is_file()), None)
    if file is None:
        return {}
    table = _table(file)
    if unknown := [key for key in table if key not in SETTINGS]:
        raise ConfigurationError(
            f"{file}: [tool.sa_jobqueue] has the unknown {'keys' if len(unknown) > 1 else 'key'} "
            f"{', '.join(map(repr, unknown))}; known are {', '.join(sorted(SETTINGS))}"
        )
    return {key: _value(key, value, file) for key, value in table.items()}


def _table(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:  # a TOMLDecodeError is a ValueError
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
    tools: Any = content.get("tool", {})
    table: Any = tools.get("sa_jobqueue", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise ConfigurationError(f"{file}: tool.sa_jobqueue must be a table, not {table!r}")
    return {key.replace("-", "_"): value for key, value in cast(dict[str, Any], table).items()}


def _value(key: str, value: Any, file: Path) -> Any:
    """Return a value as the option takes it. An option that can be repeated also takes a table: {mail = 10} for mail=10."""
    if key in SEVERAL:
        if isinstance(value, dict):
            return [f"{name}={part}" for name, part in cast(dict[str, Any], value).items()]
        return value if isinstance(value, list) else [value]
    if isinstance(value, (dict, list)):
        raise ConfigurationError(f"{file}: {key} in [tool.sa_jobqueue] must be one value, not {value!r}")
    if key == "embedded_dir" and isinstance(value, str) and not value.startswith("~"):
        return str(file.parent / value)  # so that it is the same folder in every directory below
    return value


def settings_of(command: Any) -> list[Any]:
    """The options of a command that the environment and pyproject.toml can set."""
    return [option for option in command.params if str(option.envvar or "").startswith(PREFIX)]


def key_of(option: Any) -> str:
    """The name of an option in pyproject.toml."""
    return str(option.envvar).removeprefix(PREFIX).lower()


#: The slots of a queue without a number.
SLOTS = 10


def queues_of(given: Sequence[str], *, slots: int | None = SLOTS) -> dict[str, int]:
    """Parse `["mail=10", "default"]` as names and slots. `slots`: the slots of a name without a number; None: each name needs a number.

    Raises ConfigurationError.
    """
    queues: dict[str, int] = {}
    for text in given:
        name, equals, number = text.rpartition("=")
        if not equals and (other := re.fullmatch(r"(.+):(\d*)", text, re.ASCII)):
            raise ConfigurationError(
                f"--queue {text}: for {other[2] or SLOTS} slots of the queue {other[1]!r} write {other[1]}={other[2] or SLOTS}; "
                f"for a queue that is named {text!r}, {text}={SLOTS}"
            )
        if not equals and slots is not None:
            name, number = text, str(slots)
        if not name or not re.fullmatch(r"\d{1,9}", number, re.ASCII):
            expected = "NAME=SLOTS" if slots is None else "NAME or NAME=SLOTS"
            raise ConfigurationError(f"--queue {text}: expected {expected}, as in mail=10")
        if re.search(r"=\d+(\s|[,;])", name, re.ASCII):
            raise ConfigurationError(
                f"--queue {text}: expected one queue; repeat --queue, or write spaces between them in SA_JOBQUEUE_QUEUE, "
                "a list or a table in pyproject.toml"
            )
        if name in queues:
            raise ConfigurationError(f"--queue {text}: the queue {name!r} is given twice")
        queues[name] = int(number)
    return queues
