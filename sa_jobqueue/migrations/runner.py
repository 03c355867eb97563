"""Runs the steps: through an Alembic revision's `op`, on a database of which only the URL is known, or as a script."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ..errors import ConfigurationError, JobQueueError, SchemaError
from ..util.log import get_logger
from ..util.schema import CURRENT, SCHEMA, quote
from ..util.sqlalchemy_internals import is_in_its_own_transaction
from ..util.urls import database_url
from .steps import Step, downgrades, preparation, upgrades

if TYPE_CHECKING:
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext


logger = get_logger(__name__)


class MigrationOperations(Protocol):
    """What is used of Alembic's `op`: the module `alembic.op`, or an `Operations`."""

    def get_context(self) -> MigrationContext:
        """Return what says where the revision runs: on a connection, or offline (`--sql`)."""
        ...

    def get_bind(self) -> sa.Connection:
        """Return the connection; there is none offline."""
        ...

    def execute(self, sqltext: sa.Executable | str, /) -> None:
        """Execute a statement in the revision's transaction; offline, write it out."""
        ...


def upgrade(op: MigrationOperations, to: int | None = None, *, schema: str | None = None) -> None:
    """Bring the schema up to version `to` (default: this release's), from inside an Alembic revision.

    It joins the revision's transaction and works offline (`--sql`) too. A version that builds an index of a table in use
    commits that transaction first and begins another afterwards, because PostgreSQL builds such an index only outside a
    transaction. A schema with this or a newer version stays as it is.
    While another migration of the same schema runs, it waits: `lock_timeout` where the session sets it, else a minute.

    Args:
        op: `alembic.op`, or an `Operations` of your own.
        to: The version; write it out in a revision, so that the revision keeps its meaning.
        schema: The schema's name. Default: what the connection's `schema_translate_map` makes of `sa_jobqueue`. Offline
            there is no connection, so another name must be given here.

    Raises:
        ConfigurationError: There is no such version, or the database is not PostgreSQL (CockroachDB and YugabyteDB are refused, too).
        JobQueueError: The role may not do it, or something is in the way; the message says which.
    """
    name = _schema_of(op, schema)
    _run(op, upgrades(CURRENT if to is None else to, name), name)


def downgrade(op: MigrationOperations, to: int = 0, *, schema: str | None = None) -> None:
    """Bring the schema down to version `to`, with all jobs at 0, from inside an Alembic revision.

    At 0 the schema itself goes as well, unless something that is not ours is in it (Alembic's version table, say) or the
    role could not make it again. Arguments and errors are those of `upgrade`.
    """
    name = _schema_of(op, schema)
    _run(op, downgrades(to, name), name)


def create_schema(op: MigrationOperations, *, schema: str | None = None) -> None:
    """Create the empty schema, and keep other migrations of it out until the transaction ends.

    For an `env.py` that has Alembic's version table in this schema: Alembic makes its table before it runs a revision.
    """
    name = _schema_of(op, schema)
    _run(op, [preparation(name)], name)


def upgrade_database(
    target: sa.Engine | sa.Connection | sa.URL | str, to: int | None = None, *, schema: str | None = None
) -> int:
    """Bring the schema up to version `to` (default: this release's), without an Alembic history; return its version.

    On an `Engine` or a URL it commits; on a `Connection` it joins the caller's transaction. Under asyncio:
    `await connection.run_sync(upgrade_database)`. Arguments and errors are those of `upgrade`.
    """
    return _on_database(target, schema, lambda op, name: upgrade(op, to, schema=name))


def downgrade_database(
    target: sa.Engine | sa.Connection | sa.URL | str, to: int = 0, *, schema: str | None = None
) -> int:
    """Bring the schema down to version `to`, with all jobs at 0; return its version. See `upgrade_database`."""
    return _on_database(target, schema, lambda op, name: downgrade(op, to, schema=name))


def sql(to: int | None = None, *, schema: str = SCHEMA) -> str:
    """Return the script for `psql` that brings the schema up to version `to`; with 0 the script that removes it.

    It may be run on any version up to this release's, also twice.
    """
    steps = downgrades(0, schema) if to == 0 else upgrades(CURRENT if to is None else to, schema)
    statements = ["BEGIN"]
    for step in steps:
        statements += ["COMMIT", step.statement, "BEGIN"] if step.alone else [step.statement]
    return "\n\n".join(f"{statement};" for statement in (*statements, "COMMIT")) + "\n"


def current_version(connection: sa.Connection, schema: str | None = None) -> int | None:
    """Return the schema's version in the database, or None where it is missing.

    Raises `JobQueueError` if the role may not read it.
    """
    name = _translated(connection, schema)
    table = f"{quote(name)}.schema_version"
    with _plain_errors(name, _MAY_NOT_LOOK):
        if connection.scalar(sa.text("SELECT to_regclass(:table)"), {"table": table}) is None:
            return None
        version: int | None = connection.scalar(verbatim(f"SELECT max(version) FROM {table}"))
        return version


def check_schema(connection: sa.Connection, schema: str | None = None) -> None:
    """Raise `SchemaError` if the schema is missing, older than this release needs, or too new for it.

    A newer schema says whether this release can work with it. An upgrade first adds, so that the previous release goes on
    while a deployment rolls; only a later version takes away.
    """
    name = _translated(connection, schema)
    found = current_version(connection, name)
    if found == CURRENT:
        return
    oldest = verbatim(f"SELECT max(compatible_with) FROM {quote(name)}.schema_version")
    if found is None or found < CURRENT or connection.scalar(oldest) > CURRENT:
        others = _schemas(connection) if found is None else ()
        raise SchemaError(
            found=found, needed=CURRENT, schema=name, database=connection.engine.url.database, others=others
        )
    logger.info(
        "the job queue's schema %r has version %d; this release knows version %d and can work with it",
        name, found, CURRENT,
    )  # fmt: skip


def _schemas(connection: sa.Connection) -> Sequence[str]:
    """Some of the schemas that were migrated, as those of job tables of the application's own."""
    return connection.scalars(
        verbatim(
            "SELECT nspname FROM pg_namespace WHERE EXISTS (SELECT FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid "
            "WHERE relnamespace = pg_namespace.oid AND relname = 'schema_version' AND attname = 'compatible_with') "
            "ORDER BY nspname LIMIT 3"
        )
    ).all()


def _run(op: MigrationOperations, steps: Sequence[Step], schema: str) -> None:
    context = op.get_context()
    if context.dialect.name != "postgresql":
        raise ConfigurationError(
            f"the job queue lives in PostgreSQL, and this is a migration of {context.dialect.name}"
        )
    if not context.as_sql:
        _refuse_others(op.get_bind().scalar(sa.text("SELECT version()")) or "")
    for step in steps:
        if not step.alone:
            _execute(op, step, schema)
        elif context.as_sql or op.get_bind().scalar(verbatim(step.needed or "")):
            with _no_transaction(context):
                _execute(op, step, schema)


#: Parts of `version()` of servers that speak PostgreSQL's protocol, but lack features that the statements and the wake-ups need.
_OTHERS: Final = {"CockroachDB": "CockroachDB", "-YB-": "YugabyteDB"}


def _refuse_others(version: str) -> None:
    if name := next((name for sign, name in _OTHERS.items() if sign in version), None):
        raise ConfigurationError(f"the job queue needs PostgreSQL, and this server is {name}: {version}")


@contextmanager
def on_postgresql() -> Generator[None]:
    """Raise ConfigurationError where the block connects to a server of another kind, whose version SQLAlchemy cannot read."""
    try:
        yield
    except AssertionError as error:
        _refuse_others(str(error))
        raise


def _execute(op: MigrationOperations, step: Step, schema: str) -> None:
    context = op.get_context()
    if context.as_sql:
        # Uncompiled, because compiling doubles each percent sign for a driver, and offline there is none.
        context.impl.static_output(f"{step.statement};")
    else:
        with _plain_errors(schema):
            op.execute(verbatim(step.statement))


_IN_A_TRANSACTION = (
    "this version of the job queue's schema builds an index while the table is in use, which cannot be done inside "
    "of your transaction: give upgrade_database() an engine or a URL, or a connection in AUTOCOMMIT; "
    "in an env.py of Alembic's run the migrations inside of `with context.begin_transaction():`"
)


@contextmanager
def _no_transaction(context: MigrationContext) -> Generator[None]:
    """Commit what was done so far, and go on in a transaction of the same kind afterwards."""
    if not context.as_sql and (connection := context.connection) is not None:
        if getattr(connection.connection.dbapi_connection, "autocommit", False):
            yield
            return
        if not is_in_its_own_transaction(context):
            raise ConfigurationError(_IN_A_TRANSACTION)
    with context.autocommit_block():
        yield


def _on_database(
    target: sa.Engine | sa.Connection | sa.URL | str, schema: str | None, migrate: Callable[[Operations, str], None]
) -> int:
    with _connection(target) as connection:
        name = _translated(connection, schema)
        from alembic.operations import Operations
        from alembic.runtime.migration import MigrationContext

        context = MigrationContext.configure(connection)
        # The caller commits a connection of their own.
        with nullcontext() if connection is target else context.begin_transaction():
            migrate(Operations(context), name)
        return current_version(connection, name) or 0


@contextmanager
def _connection(target: sa.Engine | sa.Connection | sa.URL | str) -> Generator[sa.Connection]:
    match target:
        case sa.Connection():
            yield target
        case sa.Engine():
            # READ COMMITTED, to see the changes of another migration for which this migration waited.
            with on_postgresql():
                opened = target.connect()
            with opened.execution_options(isolation_level="READ COMMITTED") as connection:
                yield connection
                connection.commit()
        case AsyncEngine() | AsyncConnection():  # pyright: ignore[reportUnnecessaryComparison]  # callers may ignore the types
            raise ConfigurationError(
                "migrations are made on a connection that is not async: await connection.run_sync(upgrade_database), within "
                "`async with engine.begin() as connection:`; or give the URL, engine.url"
            )
        case _:
            engine = sa.create_engine(database_url(target), poolclass=sa.NullPool)
            with _connection(engine) as connection:
                yield connection


def _schema_of(op: MigrationOperations, schema: str | None) -> str:
    context = op.get_context()
    if context.as_sql or context.connection is None:
        return schema or SCHEMA
    return _translated(context.connection, schema)


def _translated(connection: sa.Connection, schema: str | None) -> str:
    """The schema's name: `schema`, or what this connection makes of ours."""
    if schema is not None:
        return schema
    names: dict[str | None, str | None] = connection.get_execution_options().get("schema_translate_map") or {}
    name = names.get(SCHEMA, SCHEMA)
    return name or str(connection.dialect.default_schema_name)


def verbatim(statement: str) -> sa.TextClause:
    """`statement` as it stands: a colon starts no parameter."""
    return sa.text(statement.replace(":", r"\:"))


#: SQLSTATE -> what it means for the operator who migrates.
_REASONS: Final = {
    "42501": "the role may not do it: run it as the owner of the schema, or GRANT CREATE ON DATABASE, or CREATE and "
    "USAGE ON SCHEMA, to this role",
    "55P03": "another migration is at work, or a table is in use; it waited as long as `lock_timeout` allows and changed "
    "nothing: run it again",
    **dict.fromkeys(
        ("42P07", "42710", "42723"),  # a table, index or sequence; a trigger; a function
        "something of this name is there that no migration made: move it away, or choose another schema",
    ),
    "55000": "downgrade with the release that upgraded it",
}


_MAY_NOT_LOOK: Final = {
    "42501": "the role may not look at it: `sa-jobqueue grants --role ROLE --can read` (or enqueue, work, admin) prints the "
    "GRANTs that it needs, for the owner to execute"
}


@contextmanager
def _plain_errors(schema: str, reasons: Mapping[str, str] = _REASONS) -> Generator[None]:
    """Turn an error that happens in normal use into one line; let all others pass."""
    try:
        yield
    except DBAPIError as error:
        state, message = _state_and_message(error.orig)
        if state not in reasons:
            raise
        raise JobQueueError(f"the job queue's schema {schema!r}: {message}: {reasons[state]}") from error


def _state_and_message(error: Any) -> tuple[str, str]:
    """The SQLSTATE and the first line of the message, wherever this driver keeps them."""
    match getattr(error, "args", ()):
        case [{"C": state, "M": message}]:  # pg8000
            return state, message
        case _:
            state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
            return str(state), (str(error).splitlines() or [""])[0]
