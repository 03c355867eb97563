"""The private API of SQLAlchemy and Alembic that this package uses. `tests/unit/test_sqlalchemy_internals.py` has a test for each name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import InstanceState, Session
from sqlalchemy.orm.attributes import instance_state

if TYPE_CHECKING:
    from alembic.runtime.migration import MigrationContext


class SharedInsert(sa.Insert):
    """The INSERT that many calls share, with the values of one of them.

    When it is executed, `shared()` is, with the values as its parameters: its cache key need not be made. For everything else (its
    text, a CTE, a changed copy) `in_full()` stands for it, in which the values are part of the statement.
    """

    inherit_cache = True

    def __init__(self, attributes: dict[str, Any], values: dict[str, Any]) -> None:
        vars(self).update(attributes)
        self._given = values

    def shared(self) -> sa.Insert:
        raise NotImplementedError

    def in_full(self) -> sa.Insert:
        raise NotImplementedError

    def _execute_on_connection(self, connection: Any, distilled_params: Any, execution_options: Any) -> Any:
        if len(distilled_params) > 1 or any(distilled_params):  # of the caller's own
            return super()._execute_on_connection(connection, distilled_params, execution_options)
        return self.shared()._execute_on_connection(connection, [self._given], execution_options)  # noqa: SLF001

    def _annotate(self, values: Any) -> Any:
        # A Session does so with each ORM INSERT. An INSERT that returns a plain column needs nothing else for it.
        return self if values == {"dml_strategy": "orm"} else self.in_full()._annotate(values)  # noqa: SLF001

    def _generate(self) -> Any:
        return self.in_full()._generate()  # noqa: SLF001

    def _clone(self, **options: Any) -> Any:
        return self.in_full()._clone(**options)  # noqa: SLF001


def may_have_listeners(connection: sa.Connection) -> bool:
    """False if neither the connection nor its engine ever had a listener. Reading the listeners of a new connection takes 4 µs."""
    engine = connection.engine
    return bool(getattr(connection, "_has_events", True) or getattr(engine, "_has_events", True))


def take_out(session: Session, instances: Iterable[object]) -> None:
    """Take pending objects out of the session, and leave in it what their relationships lead to, for which `expunge` would search."""
    session._expunge_states([instance_state(instance) for instance in instances])  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def add_again(session: Session, instances: Iterable[object]) -> None:
    """Add objects that the session has had: what their relationships lead to, for which `add` would search, has been added with them."""
    for instance in instances:
        session._save_impl(instance_state(instance))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def register_flushed(session: Session, instances: Iterable[object]) -> None:
    """Make pending objects persistent, as a flush does after their INSERT: a rollback makes them transient again."""
    states: set[InstanceState[Any]] = {instance_state(instance) for instance in instances}
    session._register_persistent(states)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def fail_flush(session: Session) -> None:
    """Roll back as a flush that has failed does, to be called where its error is handled: the session asks for a `rollback()` then."""
    transaction = session._autobegin_t()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    transaction._begin().rollback(_capture_exception=True)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def savepoints_since(savepoint: sa.NestedTransaction) -> list[str]:
    """The names of `savepoint` and of the open savepoints after it, in order."""
    found, last = list[str](), savepoint.connection.get_nested_transaction()
    while last is not None:
        found.insert(0, last._savepoint)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        last = None if last is savepoint else last._previous_nested  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return found


def invalidate_pool(engine: sa.Engine) -> None:
    """Let the pool replace all connections that it has by now when they are next needed, as Core does when it finds a broken connection."""
    engine.pool._invalidate(None)  # type: ignore[arg-type]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def copy_of(default: sa.Computed | sa.Identity) -> sa.Computed | sa.Identity:
    """A copy for a column of another table."""
    return default._copy()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def is_in_its_own_transaction(context: MigrationContext) -> bool:
    """Whether Alembic began the transaction, so that it may commit it: it does not tell otherwise."""
    return context._transaction is not None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
