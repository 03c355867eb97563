"""Reaching a server: through its socket, whatever libpq's variables say of other servers."""

from __future__ import annotations

import os

import sqlalchemy as sa
from psycopg import pq
from psycopg.conninfo import make_conninfo

from ..errors import EmbeddedUnavailable
from .processes import postmaster_of
from .spec import GIVE_A_DATABASE, ServerSpec
from .waiting import polls

__all__ = ["conninfo_of", "ping", "refuse_leading_away", "settles_running", "url_of"]

_LEADING_AWAY = ("PGHOSTADDR", "PGSERVICE")
"""Variables of libpq's that no URL can overrule: with them it would lead to another server."""


def url_of(spec: ServerSpec, database: str) -> str:
    """The SQLAlchemy URL (psycopg) of a database, whether or not it exists."""
    query = {"host": str(spec.socket_directory)}
    # With the port, which PGPORT would say otherwise.
    return sa.URL.create("postgresql+psycopg", "postgres", port=5432, database=database, query=query).render_as_string()


def conninfo_of(spec: ServerSpec) -> str:
    """Libpq's connection string for the maintenance database."""
    return make_conninfo(
        host=str(spec.socket_directory),
        hostaddr="",  # and not PGHOSTADDR
        port=5432,
        user="postgres",
        dbname="postgres",
        gssencmode="disable",  # a socket has none, whatever PGGSSENCMODE requires
        connect_timeout=10,
    )


def refuse_leading_away() -> None:
    """Raise EmbeddedUnavailable if the environment would lead every URL of ours to another server."""
    for name in _LEADING_AWAY:
        if os.environ.get(name):
            raise EmbeddedUnavailable(
                f"{name} is set, which leads connections away from the embedded PostgreSQL: unset it, or {GIVE_A_DATABASE}"
            )


def ping(spec: ServerSpec) -> pq.Ping:
    """How the server answers, if it does."""
    conninfo = conninfo_of(spec).encode()
    answer = pq.Ping(pq.PGconn.ping(conninfo))
    if answer is pq.Ping.NO_ATTEMPT:
        reason = pq.PGconn.connect_start(conninfo).get_error_message()
        raise EmbeddedUnavailable(
            f"libpq cannot make a connection with the PG* variables of the environment: {reason}: unset the one it means"
        )
    return answer


def settles_running(spec: ServerSpec) -> bool:
    """Wait until the server is no longer starting or stopping, because the command that did it may have been killed.

    Return whether it runs then.
    """
    for _ in polls():
        answer = ping(spec)
        if answer is pq.Ping.OK:
            return True
        if answer is pq.Ping.NO_RESPONSE and postmaster_of(spec) is None:
            return False
    raise EmbeddedUnavailable(
        f"the embedded PostgreSQL runs but does not answer on {spec.socket_directory}; its log is {spec.log}"
    )
