"""The transaction that a handler's session joins.

It is opened when the session first asks for a connection, on the engine of the user's sessionmaker or the worker's.
Everything here is synchronous code over a `Session`; an async handler's runs inside `AsyncSession.run_sync`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Engine, Pool, func, select
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from .. import operations
from ..errors import SessionUnavailable
from ..lifecycle import Change
from ..models import Job
from ..operations import Answer, fault_of, kept_for_now

__all__ = ["Unit"]


class Unit:
    """One handler's database work: its session, and the transaction that ends together with the job's completion."""

    __slots__ = (
        "_closed",
        "_engine",
        "_idle",
        "_job",
        "_opening",
        "_original",
        "_pool",
        "_root",
        "_translate",
        "_worker",
        "connection",
        "session",
    )

    def __init__(
        self,
        session: Session,
        *,
        engine: Engine | None,
        translate: Mapping[str | None, str | None] | None,
        idle: float | None = None,
        worker: str | None = None,
        job: type[Job] = Job,
    ) -> None:
        # A session of the user's sessionmaker knows its engine, and perhaps other databases for some of its classes.
        own = session.bind
        self._engine = engine if own is None else own.engine
        self._translate, self._idle = translate, idle
        self._worker, self._job = worker, job
        self._opening = self._closed = False
        self._pool: Pool | None = None
        self.connection: Connection | None = None
        self.session = session
        self._original = session.get_bind
        self._root: SessionTransaction | None = None
        # The handler's own commit() ends nothing, and its rollback() undoes what it wrote. SAVEPOINT and RELEASE would
        # be two of six round trips, so there is none before the handler has committed something: see `_join`.
        session.join_transaction_mode = "rollback_only"
        session.get_bind = self._bind  # type: ignore[method-assign]

    def _bind(self, *args: Any, **options: Any) -> Engine | Connection:
        """Where the session's next statement goes: to our transaction, or, by the user's `binds`, to another database."""
        try:
            elsewhere = self._original(*args, **options)
        except UnboundExecutionError:
            elsewhere = None
        if elsewhere is not None and elsewhere.engine is not self._engine:
            return elsewhere
        if self._closed:
            # What is opened here would be nobody's to close: an open transaction for ever.
            raise SessionUnavailable("the job has ended, and its ctx.session with it")
        if self.connection is None:
            if self._opening:
                raise SessionUnavailable(
                    "ctx.session is one connection: it is not for several tasks or threads at once"
                )
            self._opening = True
            try:
                self.connection = self._open()
            finally:
                self._opening = False
        self._join(self.connection)
        return self.connection

    def _join(self, connection: Connection) -> None:
        """Let the session's next transaction join ours; a new one, if the handler rolled the last one back.

        After a commit() of the handler's it joins by a savepoint, so that a later rollback() goes back no further.
        """
        root = self.session.get_transaction() or self.session.begin()
        if not connection.in_transaction():
            self._begin(connection)
        elif root is not self._root and self._root is not None:
            self.session.join_transaction_mode = "create_savepoint"
        self._root = root

    def _open(self) -> Connection:
        if self._engine is None:
            raise SessionUnavailable(
                "ctx.session needs an engine of the handler's kind: async handlers an AsyncEngine, def handlers an "
                "Engine; give the worker one, Worker(engine, async_engine=...), or a URL"
            )
        self._pool = self._engine.pool
        connection = self._engine.connect()
        try:
            options: dict[str, Any] = {}
            given = connection.get_execution_options()
            # Where it is so anyhow, to set it and to reset it would cost a sixth of a job that does one INSERT.
            if connection.default_isolation_level != "READ COMMITTED" or "isolation_level" in given:
                options["isolation_level"] = "READ COMMITTED"
            translated = given.get("schema_translate_map") or {}
            if self._translate and not self._translate.items() <= translated.items():
                options["schema_translate_map"] = {**translated, **self._translate}
            if options:
                connection = connection.execution_options(**options)
            self._begin(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin(self, connection: Connection) -> None:
        connection.begin()
        if self._idle is not None:
            value = f"{int(self._idle * 1000)}ms"
            connection.execute(select(func.set_config("idle_in_transaction_session_timeout", value, True)))

    def complete(self, change: Change) -> Answer | None:
        """Commit what the handler wrote together with `change`, or, if the claim is no longer valid, nothing.

        None: the session was never used, so there is nothing to commit and `change` is still to be written.
        """
        try:
            if self.connection is None and not (self.session.new or self.session.dirty or self.session.deleted):
                self.session.commit()
                return None
            self.session.flush()
            if self.connection is None:
                self.session.commit()  # all of it went to other databases
                return None
            connection = self.connection
            if not connection.in_transaction():
                self._begin(connection)  # the handler rolled back what it wrote, and wrote nothing since
            answer = self._write(connection, change)
            if answer is not Answer.APPLIED:
                return answer
            self.session.commit()
            self._closed = True  # from here on a task or thread that was left behind may begin nothing
            connection.commit()
            return answer
        finally:
            self.close()

    def _write(self, connection: Connection, change: Change) -> Answer:
        """Write `change`; a row that it should delete, and that cannot be deleted, is kept for now."""
        if not change.deletes:
            return operations.apply_one(connection, change, worker=self._worker, job=self._job)
        try:
            # A row of the application's may need this one, or be locked. A deferred constraint says so only at the
            # COMMIT: then the attempt fails.
            with connection.begin_nested():
                return operations.apply_one(connection, change, worker=self._worker, job=self._job)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            return self._write(connection, kept_for_now(change, fault_of(error)))

    def close(self) -> None:
        """Roll back what was not committed and give the connection back."""
        self._closed = True
        try:
            self.session.close()
        finally:
            if self.connection is not None:
                connection, self.connection = self.connection, None
                if connection.engine.pool is not self._pool:
                    connection.detach()  # the worker has left, and closed its pool: nobody would close what goes back
                connection.close()
