"""Roles of the database: `grants`."""

from __future__ import annotations

import sys
from typing import Annotated

import psycopg
import typer
from sqlalchemy import Connection, text

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.grants import Can, grant_statements

from .config import Config
from .output import cleaned, say
from .place import transaction

__all__ = ["grants"]

#: What the server says, as a warning, to one who may not grant.
_NOT_GRANTED = frozenset({"01007", "0LP01"})


def grants(
    config: Config,
    *,
    role: Annotated[str, typer.Option(metavar="NAME", help="The database role; it must exist.")],
    can: Annotated[list[Can], typer.Option(help="What it may do. May be repeated.")],
    apply: Annotated[
        bool, typer.Option("--apply", help="Execute them, all or none, as the role in the database URL.")
    ] = False,
) -> None:
    """Print the GRANTs that a role needs to enqueue, to work, to read or to administer.

    The owner of the tables executes them, and again after each upgrade. Repeated, they change nothing.

    sa-jobqueue grants --role web --can enqueue | psql shop
    sa-jobqueue grants --role jobs --can work --can enqueue --apply
    """
    statements = grant_statements(role, can, schema=config.schema)
    if not apply:
        sys.stdout.writelines(f"{statement};\n" for statement in statements)
        return
    with transaction(config) as connection:
        refused = _warnings(connection)
        for statement in statements:
            connection.execute(text(statement.replace(":", r"\:")))  # no colon in a name starts a parameter
        if refused:
            raise ConfigurationError(
                f"nothing was granted: {refused[0]}; execute them as the owner of schema {config.schema}"
            )
    say(f"role {cleaned(role)} can {', '.join(dict.fromkeys(can))} in schema {cleaned(config.schema)}")


def _warnings(connection: Connection) -> list[str]:
    """The server's warnings that something was not granted, as they come: to it that is no error."""
    heard: list[str] = []

    def hear(diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.sqlstate in _NOT_GRANTED:
            heard.append(str(diagnostic.message_primary))

    raw = connection.connection.dbapi_connection
    assert isinstance(raw, psycopg.Connection)
    raw.add_notice_handler(hear)
    return heard
