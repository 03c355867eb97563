"""The registry of the queue's own tables, and the schema they live in."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase

from ..schema import SCHEMA
from .json_text import decode_on_read

__all__ = ["SCHEMA", "Base", "vacuum_by_traffic"]


class Base(DeclarativeBase):
    """The registry of the queue's own tables, apart from the application's."""

    metadata = sa.MetaData(schema=SCHEMA)
    type_annotation_map: ClassVar = {
        datetime: sa.DateTime(timezone=True),
        str: sa.Text(),
    }


sa.event.listen(Base, "attribute_instrument", decode_on_read, propagate=True)


def vacuum_by_traffic(model: type[Base], *, also: str = "") -> None:
    """Let `create_all` make the table so that it is vacuumed after 5,000 dead rows, however large it is: they come from a queue's
    traffic, not from its size. `also`: more storage parameters, as SQL.
    """
    settings = f"{also}autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000"
    # `postgresql_with` on a Table is new in SQLAlchemy 2.1; this is the same on 2.0.
    statement = sa.DDL(f"ALTER TABLE %(fullname)s SET ({settings})")  # type: ignore[no-untyped-call]
    sa.event.listen(model.__table__, "after_create", statement)
