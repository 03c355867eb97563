"""Wake-up gates: asking to be told of new jobs.

A gate is a sequence, used as a cell that belongs to no transaction. It holds the second of the epoch until which some
worker wants to be woken. The INSERT trigger reads it, and is silent when that time is over. A queue's name is hashed to
one of sixteen gates; one more, `gate_any`, holds the latest of their times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import REGCLASS

from ..models import SCHEMA
from ..schema import GATES
from .parts import array, rows

__all__ = ["PERMITS_CHANGED", "SCHEDULES_CHANGED", "WORKFLOWS_CHANGED", "channel_of", "open_gates"]

#: What is told on a table's channel where a schedule was made or changed, instead of a queue's name.
SCHEDULES_CHANGED = "(schedules)"
#: The same where limits have changed, or a permit is free.
PERMITS_CHANGED = "(limits)"
#: The same where workflows have events that no worker may know of.
WORKFLOWS_CHANGED = "(workflows)"


def open_gates(*, queues: Sequence[str] | None, seconds: float, schema: str = SCHEMA) -> sa.Executable:
    """Ask to be woken for `queues`, None: for any, during the next `seconds`. Never shortens what another worker asked for."""
    number: sa.ColumnElement[Any]
    if queues is None:
        number = sa.func.generate_series(sa.literal_column("0"), sa.literal_column(str(GATES - 1)))
    else:
        wanted = rows("wanted", queue=array("queue_names", queues, sa.Text()))
        number = sa.func.hashtext(wanted.c.queue).op("&")(sa.literal_column(str(GATES - 1)))
    each, latest = sa.select(sa.cast(number, sa.Text).label("gate")), sa.select(sa.literal_column("'any'", sa.Text))
    asked = sa.union_all(each, latest).subquery("asked")
    prefix = sa.func.concat(
        sa.func.quote_ident(sa.bindparam("in_schema", schema, sa.Text)), sa.literal_column("'.gate_'")
    )
    gate = sa.cast(sa.func.concat(prefix, asked.c.gate), REGCLASS)
    clock = sa.func.extract("epoch", sa.func.clock_timestamp()) + sa.bindparam("open_seconds", seconds, sa.Float)
    until = sa.cast(sa.func.ceil(clock), sa.BigInteger)
    return sa.select(sa.func.setval(gate, sa.func.greatest(until, sa.func.pg_sequence_last_value(gate)))).select_from(
        asked
    )


def channel_of(*, table: str, schema: str = SCHEMA) -> sa.Executable:
    """The channel on which a table's wake-ups come."""
    in_schema, of_table = sa.bindparam("in_schema", schema, sa.Text), sa.bindparam("of_table", table, sa.Text)
    name = sa.func.concat(sa.func.quote_ident(in_schema), sa.literal_column("'.'"), sa.func.quote_ident(of_table))
    oid = sa.cast(sa.cast(name, REGCLASS), sa.BigInteger)
    return sa.select(sa.func.concat(sa.literal_column("'sa_jobqueue_'"), oid))
