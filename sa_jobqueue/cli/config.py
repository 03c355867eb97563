"""The settings of a command: options, then the environment (SA_JOBQUEUE_...), then [tool.sa_jobqueue] in pyproject.toml.

    [tool.sa_jobqueue]
    app = ["shop.tasks"]
    schema = "jobs"

The keys of that table are the names of the environment variables, without SA_JOBQUEUE_ and in lower case. The nearest
pyproject.toml counts, from the working directory upwards.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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
from .table import SETTINGS

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


#: Where many applications have their database's URL; it counts where ours is set nowhere.
DATABASE_URL = "DATABASE_URL"


class LogLevel(StrEnum):
    """How much is logged, on stderr."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_database, _general = (partial(setting, rich_help_panel=panel) for panel in ("Database", "General"))


@dataclass(frozen=True)
class Config(Options):
    """What holds for a whole command. Nothing below the commands reads the environment.

    The help shows the defaults, also those from pyproject.toml, but not the database's, which may hold a password.
    """

    app: Annotated[
        list[str],
        setting(
            metavar="MODULE",
            help="Import this module, which declares the tasks; module:attribute names a Registry in it, a Worker, or "
            "a function that makes a Worker. May be repeated, or a list with commas. The working directory is "
            "searched first.",
            show_default=False,
        ),
    ] = field(default_factory=list)
    database_url: Annotated[
        str | None,
        _database(
            metavar="URL",
            help="postgresql://user:password@host:port/database. Without one: DATABASE_URL in the environment, else the "
            "embedded PostgreSQL.",
            show_default=False,
        ),
    ] = field(default=None, repr=False)
    schema: Annotated[str, _database(metavar="NAME", help="The schema of the job tables.")] = SCHEMA
    embedded_dir: Annotated[
        Path | None,
        _database(
            metavar="FOLDER",
            help="The embedded PostgreSQL's folder. Without one: a folder of the user's.",
            show_default=False,
        ),
    ] = None
    log_level: Annotated[
        LogLevel, _general(metavar="LEVEL", help="What is logged on stderr: debug, info, warning or error.")
    ] = LogLevel.WARNING
    debug: Annotated[bool, _general("--debug", help="Show tracebacks of errors.")] = False
    other_url: str | None = field(default=None, repr=False)
    """What DATABASE_URL says, if none of our own settings names a database or a folder of the embedded server."""

    @classmethod
    def from_options(cls, *, app: Sequence[str] = (), **given: Any) -> Self:
        """The values that Typer found; `app` may hold lists with commas. Raises ConfigurationError."""
        quote(given.get("schema", SCHEMA))  # refuses what cannot be a schema's name
        ours = given.get("database_url") is not None or given.get("embedded_dir") is not None
        other = None if ours else os.environ.get(DATABASE_URL) or None
        return cls(
            other_url=other, app=[part.strip() for one in app for part in one.split(",") if part.strip()], **given
        )

    @property
    def translate(self) -> dict[str | None, str | None]:
        """The `schema_translate_map` that finds our tables; empty where they are in the usual schema."""
        return {} if self.schema == SCHEMA else {SCHEMA: self.schema}


def working_folder() -> Path:
    """Return the working directory; raises ConfigurationError if it is gone."""
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigurationError(f"the working directory cannot be used: {error.strerror}") from error


def defaults_from_pyproject(start: Path) -> dict[str, Any]:
    """What the nearest pyproject.toml says, each value as its option takes it, by the option's name.

    Raises ConfigurationError where the file cannot be read or says something that no command knows.
    """
    file = next((found for folder in (start, *start.parents) if (found := folder / "pyproject.toml").is_file()), None)
    if file is None:
        return {}
    said = _table(file)
    if unknown := [key for key in said if key not in SETTINGS]:
        raise ConfigurationError(
            f"{file}: [tool.sa_jobqueue] has the unknown {'keys' if len(unknown) > 1 else 'key'} "
            f"{', '.join(map(repr, unknown))}; known are {', '.join(sorted(SETTINGS))}"
        )
    return {key: _value(key, value, file) for key, value in said.items()}


def _table(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        with open(file, "rb") as source:
            content = tomllib.load(source)
    except (OSError, ValueError) as error:  # a TOMLDecodeError is a ValueError
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
    tools: Any = content.get("tool", {})
    table: Any = tools.get("sa_jobqueue", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise ConfigurationError(f"{file}: tool.sa_jobqueue must be a table, not {table!r}")
    return {key.replace("-", "_"): value for key, value in cast(dict[str, Any], table).items()}


def _value(key: str, value: Any, file: Path) -> Any:
    """A value as the option takes it: for one that may be repeated also a table, {mail = 10} for mail=10."""
    if SETTINGS[key]:
        if isinstance(value, dict):
            return [f"{name}={part}" for name, part in cast(dict[str, Any], value).items()]
        return value if isinstance(value, list) else [value]
    if isinstance(value, (dict, list)):
        raise ConfigurationError(f"{file}: {key} in [tool.sa_jobqueue] must be one value, not {value!r}")
    if key == "embedded_dir" and isinstance(value, str) and not value.startswith("~"):
        return str(file.parent / value)  # wherever below it the command is given
    return value


def settings_of(command: Any) -> list[Any]:
    """The options of a command that the environment and pyproject.toml may set."""
    return [option for option in command.params if str(option.envvar or "").startswith(PREFIX)]


def key_of(option: Any) -> str:
    """The name of an option in pyproject.toml."""
    return str(option.envvar).removeprefix(PREFIX).lower()
