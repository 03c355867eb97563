"""The registry of the queue's own tables, and the schema they live in."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from sqlalchemy import DateTime, MetaData, Text, event
from sqlalchemy.orm import DeclarativeBase

from ..schema import SCHEMA
from .json_text import decode_on_read

__all__ = ["SCHEMA", "Base"]


class Base(DeclarativeBase):
    """The registry of the queue's own tables, apart from the application's."""

    metadata = MetaData(schema=SCHEMA)
    type_annotation_map: ClassVar = {
        datetime: DateTime(timezone=True),
        str: Text(),
    }


event.listen(Base, "attribute_instrument", decode_on_read, propagate=True)
