"""The database of a command: its URL, an engine, a transaction, and its name on stderr.

    with transaction(config) as connection:
        ...

The database is the one that our own settings name, else that in DATABASE_URL, else the embedded one. Each command names its
database before it uses it, in case a setting was forgotten. A command that only reads makes no database and starts no server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ConfigurationError
from ..util.schema import CURRENT, SCHEMA, quote
from ..util.urls import check_psycopg, connect_arguments, database_url
from .config import DATABASE_URL, Config
from .output import cleaned, note

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy import URL, Connection, Engine


def database(config: Config, *, make: bool = False) -> URL:
    """The URL of the database to use. A database that our own settings do not name is printed on stderr.

    `make`: start the embedded server and make the database on it where needed; else both must exist.
    """
    return _database(config, database_url, make=make)


_Read = TypeVar("_Read")


def _database(config: Config, read: Callable[[str], _Read], *, make: bool = False) -> _Read:
    if config.database_url is not None:
        return _given(config.database_url, "the given database URL", read)
    if config.other_url is not None:
        url = _given(config.other_url, DATABASE_URL, read)
        to = connect_arguments(config.other_url)
        note(f"database: {_place(to.get('dbname'), to.get('host'), to.get('port'), {})}, from {DATABASE_URL}")
        return url
    return read(_embedded_url(config, "sa_jobqueue", make=make))


def embedded_database(config: Config, name: str, *, make: bool) -> URL:
    """The URL of a database on the embedded server, which is named on stderr."""
    return database_url(_embedded_url(config, name, make=make))


def _embedded_url(config: Config, name: str, *, make: bool) -> str:
    check_psycopg()
    from ..embedded import EmbeddedServer, default_directory

    server = EmbeddedServer(config.embedded_dir or default_directory())
    url = server.create_database(name) if make else server.find_database(name)
    note(f"database: {name} on the embedded PostgreSQL in {server.home}")
    return url


def given_url(text: str, source: str) -> URL:
    """Parse a URL. Raises ConfigurationError, which names the `source`, and shows no password."""
    return _given(text, source, database_url)


def _given(text: str, source: str, read: Callable[[str], _Read]) -> _Read:
    if "://" not in text:  # not shown, because a password may be in it
        raise ConfigurationError(
            f"{source} has no scheme: expected postgresql://host:port/database, with user and password before the host"
        )
    try:
        return read(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{DATABASE_URL}: {error}") if source == DATABASE_URL else error from None


#: Parameters of a connection that its URL can override.
_DEFAULTS: dict[str, Any] = {"connect_timeout": 10, "application_name": "sa-jobqueue"}


def open_engine(config: Config, url: URL | None = None, *, make: bool = False, pooled: bool = False) -> Engine:
    """An engine that finds our tables in the given schema; it keeps no connection, unless it is `pooled`.

    `url`: the result of `database`, if it was called before. `make`: see `database`.
    """
    from sqlalchemy import NullPool, create_engine, event

    from ..arguments.storable import load_any

    url = url or database(config, make=make)
    arguments = {name: value for name, value in _DEFAULTS.items() if name not in url.query}
    pool: dict[str, Any] = {"pool_pre_ping": True} if pooled else {"poolclass": NullPool}
    engine = create_engine(url, connect_args=arguments, json_deserializer=load_any, **pool)
    event.listen(engine, "connect", _read_any_time)
    return engine.execution_options(schema_translate_map=config.translate) if config.translate else engine


@contextmanager
def transaction(config: Config, engine: Engine | None = None, *, make: bool = False) -> Generator[Connection]:
    """A transaction on the database, with a checked schema, which is committed at the end.

    `engine`: the command's engine, if it has already opened it. `make`: see `database`.
    """
    from ..migrations import check_schema

    with (engine or open_engine(config, make=make)).begin() as connection:
        check_schema(connection)
        name_database(config, connection)
        yield connection


@contextmanager
def raw_transaction(config: Config) -> Generator[psycopg.Connection[Any]]:
    """Like `transaction`, but by psycopg alone, for probes, which start often: loading SQLAlchemy takes longer than all they do."""
    arguments = _database(config, connect_arguments)
    import psycopg

    with psycopg.connect(**_DEFAULTS | arguments) as connection:
        if not _is_current(config, connection):
            # Accept a newer schema with which this release can work, and describe the problem with any other.
            from sqlalchemy import URL, StaticPool, create_engine

            from ..migrations import check_schema

            url = URL.create("postgresql+psycopg", database=arguments.get("dbname"))
            with create_engine(url, creator=lambda: connection, poolclass=StaticPool).begin() as checked:
                check_schema(checked, config.schema)
        _name_database(config, connection)
        yield connection


def _is_current(config: Config, connection: psycopg.Connection[Any]) -> bool:
    from psycopg import errors

    try:
        found = connection.execute(f"SELECT max(version) FROM {quote(config.schema)}.schema_version".encode())  # noqa: S608
    except (errors.UndefinedTable, errors.InvalidSchemaName, errors.InsufficientPrivilege):
        connection.rollback()
        return False
    return found.fetchone() == (CURRENT,)


def name_database(config: Config, connection: Connection) -> None:
    """Name the database on stderr, without a password, unless `database` has already named it."""
    from psycopg import Connection as Raw

    raw = connection.connection.dbapi_connection
    if isinstance(raw, Raw):
        _name_database(config, raw)


def _name_database(config: Config, connection: psycopg.Connection[Any]) -> None:
    if config.database_url is not None:
        schema = "" if config.schema == SCHEMA else f", schema {cleaned(config.schema)}"
        note(f"database: {_place(connection.info.dbname, connection.info.host, connection.info.port, {})}{schema}")


def name_of(url: URL) -> str:
    """The database of a URL in words: "shop on db.example"."""
    return _place(url.database, url.host, url.port, url.query)


def _place(name: str | None, host: str | None, port: int | str | None, query: Any) -> str:
    """Return a place like "shop on db.example:6432", or with the folder of a socket."""
    where = host or query.get("host") or os.environ.get("PGHOST") or "localhost"
    where = where if isinstance(where, str) else ",".join(where)
    suffix = f":{port}" if port and str(port) != "5432" and not where.startswith("/") else ""
    return f"{cleaned(name or 'the default')} on {cleaned(where)}{suffix}"


def _read_any_time(connection: Any, record: object) -> None:
    from psycopg import DataError
    from psycopg.types.datetime import TimestamptzLoader

    class AnyTime(TimestamptzLoader):
        """Loads times that Python cannot hold as its first or last year, so that an odd row does not hide the others."""

        def load(self, data: Any) -> datetime:
            try:
                return super().load(data)
            except DataError:
                early = bytes(data).startswith(b"-") or bytes(data).endswith(b"BC")
                return datetime(2 if early else 9_999, 1, 1, tzinfo=UTC)

    connection.adapters.register_loader("timestamptz", AnyTime)
    # psycopg reads times in no other style. PgBouncer keeps the setting for each of its clients, also between transactions.
    if not str(connection.info.parameter_status("DateStyle")).startswith("ISO"):
        connection.execute("SET DateStyle = ISO")
        connection.commit()
