"""Mapped objects as arguments: their key is stored, and a worker loads them in `ctx.session`.

>>> from pydantic import TypeAdapter
>>> from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
>>> class Base(DeclarativeBase): ...
>>> class Order(Base):
...     __tablename__ = "orders"
...     id: Mapped[int] = mapped_column(primary_key=True)
>>> orders = TypeAdapter(with_objects(list[Order], "orders"))
>>> orders.validate_json("[7, 8]")
[Order 7, Order 8]
>>> orders.dump_json(orders.validate_json("[7, 8]"))
b'[7,8]'

At the enqueueing an object becomes a `Reference`, whose JSON is the key. At the run the JSON becomes a `Reference` again, `load`
fetches its object, and `filled` puts that in its place. An object that has no key yet is waited for: see `Waiting`.
"""

from __future__ import annotations

from .about import About, about, checked_about
from .annotations import Fresh, Load
from .holders import with_objects
from .loading import filled, is_same, load
from .naming import named_anything
from .references import REFUSED, Held, ObjectArgument, Reference, object_in, references
from .subjects import Subject, subject_type
from .waiting import ObjectText, Waiting, as_text

__all__ = [
    "REFUSED", "About", "Fresh", "Held", "Load", "ObjectArgument", "ObjectText", "Reference", "Subject", "Waiting", "about", "as_text",
    "checked_about", "filled", "is_same", "load", "named_anything", "object_in", "references", "subject_type", "with_objects",
]  # fmt: skip
