"""The settings of a command: options, then the environment (SA_JOBQUEUE_...), then [tool.sa_jobqueue] in pyproject.toml.

    [tool.sa_jobqueue]
    app = ["shop.tasks"]
    schema = "jobs"

The keys of that table are the names of the environment variables, without SA_JOBQUEUE_ and in lower case. The nearest
pyproject.toml counts, from the working directory upwards.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self, cast

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.schema import SCHEMA, quote

from .options import PREFIX, Options, setting
from .table import SETTINGS

__all__ = ["DATABASE_URL", "Config", "LogLevel", "defaults_from_pyproject", "key_of", "settings_of", "working_folder"]

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
