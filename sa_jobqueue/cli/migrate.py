"""The schema: `migrate`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.migrations import (
    CURRENT,
    current_version,
    downgrade_database,
    revision_source,
    sql,
    upgrade_database,
)
from sa_jobqueue.migrations.runner import on_postgresql

from .config import Config
from .output import say
from .place import name_database, open_engine

__all__ = ["migrate"]


def migrate(
    config: Config,
    *,
    to: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="The version to migrate to; 0 removes everything. Default: the newest."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm a downgrade, where --to is an older version.")] = False,
    sql_only: Annotated[
        bool, typer.Option("--sql", help="Print the SQL script for psql instead; no database is used.")
    ] = False,
    revision: Annotated[
        bool,
        typer.Option("--revision", help="Print the revision for an Alembic history of your own instead."),
    ] = False,
    down_revision: Annotated[
        str | None, typer.Option(metavar="ID", help="With --revision: the head of that history.")
    ] = None,
) -> None:
    """Make the tables, or upgrade them to this release.

    Repeated, it does nothing.

    sa-jobqueue migrate
    sa-jobqueue migrate --sql | psql shop
    sa-jobqueue migrate --revision --down-revision 1a2b3c > jobs.py
    """
    if sql_only and revision:
        raise ConfigurationError("--sql and --revision exclude each other: give one of them")
    if down_revision is not None and not revision:
        raise ConfigurationError("--down-revision goes with --revision")
    if sql_only:
        sys.stdout.write(sql(to, schema=config.schema))
    elif revision:
        sys.stdout.write(revision_source(down_revision, to, schema=config.schema))
    else:
        _migrate(config, to, yes)


def _migrate(config: Config, wanted: int | None, yes: bool) -> None:
    engine = open_engine(config, make=True)
    with on_postgresql(), engine.connect() as connection:
        name_database(config, connection)
        found = current_version(connection)
    name = f"schema {config.schema}"
    # A newer schema is no mistake: an upgrade lets the previous release go on.
    to = max(CURRENT, found or 0) if wanted is None else wanted
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
