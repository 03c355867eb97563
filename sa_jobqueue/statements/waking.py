"""Wake-up gates: asking to be told of new jobs.

A gate is a sequence, used as a cell that belongs to no transaction. It holds the second of the epoch until which some
worker wants to be woken. The INSERT trigger reads it, and is silent when that time is over. A queue's name is hashed to
one of sixteen gates; one more, `gate_any`, holds the latest of their times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Float,
    Text,
    bindparam,
    cast,
    func,
    literal_column,
    select,
    union_all,
)
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


def open_gates(*, queues: Sequence[str] | None, seconds: float, schema: str = SCHEMA) -> Executable:
    """Ask to be woken for `queues`, None: for any, during the next `seconds`. Never shortens what another worker asked for."""
    number: ColumnElement[Any]
    if queues is None:
        number = func.generate_series(literal_column("0"), literal_column(str(GATES - 1)))
    else:
        wanted = rows("wanted", queue=array("queue_names", queues, Text()))
        number = func.hashtext(wanted.c.queue).op("&")(literal_column(str(GATES - 1)))
    each, latest = select(cast(number, Text).label("gate")), select(literal_column("'any'", Text))
    asked = union_all(each, latest).subquery("asked")
    prefix = func.concat(func.quote_ident(bindparam("in_schema", schema, Text)), literal_column("'.gate_'"))
    gate = cast(func.concat(prefix, asked.c.gate), REGCLASS)
    clock = func.extract("epoch", func.clock_timestamp()) + bindparam("open_seconds", seconds, Float)
    until = cast(func.ceil(clock), BigInteger)
    return select(func.setval(gate, func.greatest(until, func.pg_sequence_last_value(gate)))).select_from(asked)


def channel_of(*, table: str, schema: str = SCHEMA) -> Executable:
    """The channel on which a table's wake-ups come."""
    in_schema, of_table = bindparam("in_schema", schema, Text), bindparam("of_table", table, Text)
    name = func.concat(func.quote_ident(in_schema), literal_column("'.'"), func.quote_ident(of_table))
    oid = cast(cast(name, REGCLASS), BigInteger)
    return select(func.concat(literal_column("'sa_jobqueue_'"), oid))
