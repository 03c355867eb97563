"""The schema and its rights: `migrate` and `grants`."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import sqlalchemy as sa
import typer
from sqlalchemy.exc import SQLAlchemyError

from ..errors import ConfigurationError, JobQueueError
from ..migrations import CURRENT, current_version, downgrade_database, revision_source, sql, upgrade_database
from ..migrations.grants import Can, grant_statements
from ..migrations.runner import on_postgresql
from ..util.urls import database_url
from .config import Config
from .output import cleaned, note, say
from .place import name_database, open_engine, transaction


def migrate(
    config: Config,
    *,
    to: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="The version to migrate to; 0 removes everything. Default: the newest."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm a downgrade, where --to is an older version.")] = False,
    sql_only: Annotated[
        bool, typer.Option("--sql", help="Print the SQL script for psql instead, without a database.")
    ] = False,
    revision: Annotated[
        bool, typer.Option("--revision", help="Print the revision for an Alembic history of your own instead.")
    ] = False,
    down_revision: Annotated[
        str | None, typer.Option(metavar="ID", help="With --revision: the head of that history.")
    ] = None,
) -> None:
    """Make the tables, or upgrade them to this release.

    It does nothing if they are up to date.

    sa-jobqueue migrate
    sa-jobqueue migrate --sql | psql shop
    sa-jobqueue migrate --revision --down-revision 1a2b3c > jobs.py
    """
    if sql_only and revision:
        raise ConfigurationError("--sql and --revision exclude each other: give one of them")
    if down_revision is not None and not revision:
        raise ConfigurationError("--down-revision goes with --revision")
    if sql_only or revision:
        text = sql(to, schema=config.schema) if sql_only else revision_source(down_revision, to, schema=config.schema)
        sys.stdout.write(text)
        return
    engine = open_engine(config, make=True)
    with on_postgresql(), engine.connect() as connection:
        name_database(config, connection)
        found = current_version(connection)
    name = f"schema {config.schema}"
    # A newer schema is no mistake: an upgrade lets the previous release go on.
    to = max(CURRENT, found or 0) if to is None else to
    if found is not None and to < found and to <= CURRENT:
        if found > CURRENT:
            raise ConfigurationError(
                f"{name} has version {found}, which is newer than this release knows ({CURRENT}): upgrade the package"
            )
        if not yes:
            raise ConfigurationError(
                f"{name} would be downgraded from version {found} to {to}"
                f"{', with all its jobs' if to == 0 else ''}: add --yes to confirm"
            )
        downgrade_database(engine, to)
        say(f"{name}: {'removed' if to == 0 else f'version {to}'} (was version {found})")
    elif found == to or (found is None and to == 0):
        say(f"{name}: {'does not exist' if found is None else f'version {found}, nothing to do'}")
    else:
        upgrade_database(engine, to)
        say(f"{name}: version {to} ({'new' if found is None else f'was version {found}'})")


# ---- Rights of database roles: `grants`.

#: The codes of the server's warnings to a role that must not grant.
_NOT_GRANTED = frozenset({"01007", "0LP01"})


def grants(
    config: Config,
    *,
    role: Annotated[str, typer.Option(metavar="NAME", help="The database role; it must exist.")],
    can: Annotated[
        list[Can],
        typer.Option(metavar="WHAT", help="Its rights: enqueue, work, read, schedule, wait or admin. Can be repeated."),
    ],
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A column of your own job table that it may fill. Can be repeated."),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Execute them, all or none, as the role in the database URL.")
    ] = False,
) -> None:
    """Print the GRANTs that a role needs: to enqueue, work, wait for jobs, make schedules, read or administer.

    The owner of the tables must execute them, and again after each upgrade. It does no harm to repeat them.

    sa-jobqueue grants --role web --can enqueue | psql shop
    sa-jobqueue grants --role jobs --can work --can enqueue --apply
    """
    statements = grant_statements(role, can, schema=config.schema, columns=column or ())
    if not apply:
        _note_missing(config, role)
        sys.stdout.writelines(f"{statement};\n" for statement in statements)
        return
    with transaction(config) as connection:
        if not _exists(connection, role):
            raise ConfigurationError(_no_role(role))
        refused = _warnings(connection)
        for statement in statements:
            connection.execute(sa.text(statement.replace(":", r"\:")))  # no colon in a name starts a parameter
        if refused:
            raise ConfigurationError(
                f"nothing was granted: {refused[0]}; execute them as the owner of schema {config.schema}"
            )
    say(f"role {cleaned(role)} can {', '.join(dict.fromkeys(can))} in schema {cleaned(config.schema)}")


def _note_missing(config: Config, role: str) -> None:
    """Warn on stderr if the given database has no such role. Other errors are ignored, because printing needs no database."""
    given = config.database_url or config.other_url
    if given is None:
        return
    with suppress(SQLAlchemyError, JobQueueError), open_engine(config, database_url(given)).connect() as connection:
        if not _exists(connection, role):
            note(_no_role(role))


def _exists(connection: sa.Connection, role: str) -> bool:
    exists = sa.text("SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = :role)")
    return bool(connection.scalar(exists, {"role": role}))


def _no_role(role: str) -> str:
    quoted = '"' + role.replace('"', '""') + '"'
    return cleaned(f"this database has no role {quoted}: create it first, as by CREATE ROLE {quoted} LOGIN")


def _warnings(connection: sa.Connection) -> list[str]:
    """A list to which the server's warnings that it did not grant are added, because they are not errors."""
    import psycopg  # printing needs no libpq

    warnings: list[str] = []

    def receive(diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.sqlstate in _NOT_GRANTED:
            warnings.append(str(diagnostic.message_primary))

    raw = connection.connection.dbapi_connection
    assert isinstance(raw, psycopg.Connection)
    raw.add_notice_handler(receive)
    return warnings
