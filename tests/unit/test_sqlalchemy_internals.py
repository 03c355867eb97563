"""Each private name of SQLAlchemy's and Alembic's that the package uses is there, and does what it is used for."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext
from sqlalchemy import event
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sa_jobqueue
from sa_jobqueue.util.sqlalchemy_internals import (
    add_again,
    copy_of,
    fail_flush,
    invalidate_pool,
    is_in_its_own_transaction,
    may_have_listeners,
    register_flushed,
    savepoints_since,
    take_out,
)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_execute_on_connection", ["self", "connection", "distilled_params", "execution_options"]),
        ("_annotate", ["self", "values"]),
        ("_generate", ["self"]),
        ("_clone", ["self"]),
    ],
)
def test_a_method_of_insert_that_is_overridden_is_there(name: str, parameters: list[str]) -> None:
    """With these parameters first: else SQLAlchemy would call ours in another way, or not at all."""
    found = inspect.signature(getattr(sa.Insert, name)).parameters
    assert list(found)[: len(parameters)] == parameters


def test_has_events_tells_whether_there_was_a_listener() -> None:
    """`Connection._has_events` and `Engine._has_events`."""
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        assert (connection._has_events, engine._has_events) == (False, False)
        assert not may_have_listeners(connection)
        event.listen(connection, "commit", lambda _: None)
        assert may_have_listeners(connection)
    event.listen(engine, "commit", lambda _: None)
    with engine.connect() as connection:
        assert may_have_listeners(connection)
    engine.dispose()


class Base(DeclarativeBase): ...


class Thing(Base):
    __tablename__ = "thing"
    id: Mapped[int] = mapped_column(primary_key=True)


def test_an_object_is_taken_out_added_again_and_registered_as_flushed() -> None:
    """`Session._expunge_states`, `Session._save_impl` and `Session._register_persistent`."""
    engine = sa.create_engine("sqlite://")
    with Session(engine) as session:
        session.add(thing := Thing(id=1))
        take_out(session, [thing])
        assert sa.inspect(thing).transient
        add_again(session, [thing])
        assert sa.inspect(thing).pending
        session.connection()
        register_flushed(session, [thing])
        assert (sa.inspect(thing).persistent, thing in session.new, session.get(Thing, 1)) == (True, False, thing)
        session.rollback()
        assert sa.inspect(thing).transient
    engine.dispose()


def test_a_session_is_left_as_by_a_flush_that_fails() -> None:
    """`Session._autobegin_t`, `SessionTransaction._begin` and the argument of its `rollback`."""
    engine = sa.create_engine("sqlite://")
    with Session(engine) as session:
        try:
            raise KeyError("the reason")
        except KeyError:
            fail_flush(session)
        with pytest.raises(PendingRollbackError, match=r"due to a previous exception during flush.*the reason"):
            session.connection()
        session.rollback()
        session.connection()
    engine.dispose()


def test_savepoints_are_known_by_their_names() -> None:
    """`NestedTransaction._savepoint` and `NestedTransaction._previous_nested`: the names that were sent."""
    engine = sa.create_engine("sqlite://")
    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    with engine.connect() as connection, connection.begin(), connection.begin_nested():  # noqa: SIM117
        with connection.begin_nested() as second, connection.begin_nested():
            assert [f"SAVEPOINT {name}" for name in savepoints_since(second)] == sent[1:]
            assert len(sent) == 3
    engine.dispose()


def test_the_connections_of_a_pool_are_not_used_again() -> None:
    """`Pool._invalidate`."""
    engine = sa.create_engine("sqlite://", poolclass=sa.QueuePool)
    with engine.connect() as connection:
        before = connection.connection.dbapi_connection
    invalidate_pool(engine)
    with engine.connect() as connection:
        assert connection.connection.dbapi_connection is not before
    engine.dispose()


@pytest.mark.parametrize("default", [sa.Computed("1 + 1"), sa.Identity(start=7)])
def test_a_default_is_copied(default: sa.Computed | sa.Identity) -> None:
    """`Computed._copy` and `Identity._copy`."""
    copied = copy_of(default)
    assert copied is not default
    assert type(copied) is type(default)


def test_alembics_own_transaction_is_known() -> None:
    """`MigrationContext._transaction`."""
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"transactional_ddl": True})
        assert not is_in_its_own_transaction(context)
        with context.begin_transaction():
            assert is_in_its_own_transaction(context)
    engine.dispose()


def test_no_other_module_uses_private_names_of_sqlalchemy() -> None:
    """Ruff marks each (SLF001): what is left are classes of our own, rows' `_mapping`, and Python's."""
    root = Path(sa_jobqueue.__file__).parent
    lines = [
        line.strip()
        for path in root.rglob("*.py")
        if path.name != "sqlalchemy_internals.py"
        for line in path.read_text().splitlines()
        if "noqa: SLF001" in line
    ]
    ours = (
        "._mapping", "sys._getframe", "asyncio.coroutines._is_coroutine", "workflow._", "._refer(", "._make_call(", "ctx._open_steps(",
    )  # fmt: skip
    assert [line for line in lines if not any(name in line for name in ours)] == []
