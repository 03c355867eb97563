"""The transaction that a handler's session joins.

It is opened when the session first asks for a connection, on the engine of the user's sessionmaker or the worker's.
Everything here is synchronous code over a `Session`; an async handler's runs inside `AsyncSession.run_sync`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, WeakSet

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, IllegalStateChangeError, UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from ...errors import SessionUnavailable
from ...models import schema_of
from ...rules.failures import message_of
from ...rules.lifecycle import Change
from ...sql.apply import Answer, kept_for_now
from ...sql.claims import fault_of
from ...sql.store import Store
from ...sql.tables import as_sqlalchemy, is_heard
from ...util.log import get_logger
from ...util.schema import quote
from ...util.urls import same_database
from ..connections import pool as driver
from . import leftovers
from .attempt_end import LOST, RunEnding, ToWrite, Written

logger = get_logger(__name__)

_NO_MAP: Mapping[str | None, str | None] = {}
#: Options by which an engine needs a transaction of its own, if they differ from ours.
_OF_TRANSACTIONS = ("isolation_level", "postgresql_readonly", "postgresql_deferrable")
#: How a session joins our transaction, so that its commit() does not end it.
_JOINED = frozenset({"rollback_only", "create_savepoint"})
#: The error for the later of two tasks or threads that open a session at once.
SHARED = "ctx.session is one connection: it is not for several tasks or threads at once"
#: Engines about which a warning was logged.
_WARNED: WeakSet[sa.Engine] = WeakSet()


class HandlerTransaction:
    """A handler's database work: its session, and the transaction that commits together with the job's completion.

    It belongs to the thread or task of the handler.
    """

    def __init__(
        self,
        session: Session,
        *,
        engine: sa.Engine | None,
        database: sa.URL | None,
        translate: Mapping[str | None, str | None] | None,
        idle: float | None,
        store: Store,
    ) -> None:
        # A session of the user's sessionmaker has an engine, and perhaps other databases for some of its classes.
        own = session.bind
        self.engine = engine if own is None else own.engine
        self._database = database if self.engine is None else self.engine.url
        self._translate, self._idle, self._store = translate or {}, idle, store
        self.committing: Mapping[int, Change] = {}
        """The changes that the commit has sent, by job. Empty if no commit was sent."""
        self._closed = self._altered = self._others = False
        self._opening, self._lock = Lock(), Lock()
        """Held while the connection is opened; and held around `_closed` with `connection`, because a task or thread that the handler
        left behind may still be opening the connection when the worker closes this.
        """
        self._pool: sa.Pool | None = None
        self._raw: Any = None
        self._found: leftovers.Found | None = None
        self.connection: sa.Connection | None = None
        self.unopened: tuple[sa.Engine, str] | None = None
        """The engine that gave no connection at the last try, and why; None before the first try, and once there is a connection."""
        self.session = session
        self._options: Mapping[str, Any] = {}
        self._asked = self.engine
        self._original, self._close_session = session.get_bind, session.close
        self._own: dict[str, Any] = {name: vars(session)[name] for name in ("close", "reset") if name in vars(session)}
        self._root: SessionTransaction | None = None
        # The handler's own commit() ends nothing, and its rollback() undoes what it wrote. SAVEPOINT and RELEASE would
        # be two more round trips, so there is no savepoint before the handler has committed something: see `_join`.
        session.join_transaction_mode = "rollback_only"
        session.get_bind = self._bind  # type: ignore[method-assign]
        # By itself a session leaves a transaction that it has joined open.
        session.close = self._discarding(session.close)  # type: ignore[method-assign]
        session.reset = self._discarding(session.reset)  # type: ignore[method-assign]

    def _discarding(self, end: Callable[[], None]) -> Callable[[], None]:
        """The session's `close()` or `reset()`, also at the end of `with ctx.session:`. It rolls back what was not committed."""

        def close() -> None:
            if self.session.in_transaction():
                self.session.rollback()
            end()

        return close

    def _bind(self, *args: Any, **options: Any) -> sa.Engine | sa.Connection:
        """The target of the session's next statement: our transaction, or another database where `binds` or an application's
        `get_bind` leads there.
        """
        try:
            elsewhere = self._original(*args, **options)
        except UnboundExecutionError:
            elsewhere = None
        engine = self.engine if elsewhere is None else elsewhere.engine
        if self._closed:
            refuse()
        if elsewhere is not None and not self._is_ours(elsewhere.engine):
            self._others = True
            return elsewhere
        connection = self.connection or self._connect()
        self._join(connection)
        self._translate_for(connection, engine)
        return connection

    def _connect(self) -> sa.Connection:
        """Open the connection. If this transaction was closed meanwhile, give it back and refuse: nobody else would."""
        if self.engine is None:
            raise SessionUnavailable(
                "ctx.session needs an engine of the handler's kind: async handlers an AsyncEngine, def handlers an "
                "Engine; give the worker one, Worker(engine, async_engine=...), or a URL"
            )
        if not self._opening.acquire(blocking=False):
            raise SessionUnavailable(SHARED)
        try:
            if (opened := self.connection) is None:
                opened = self._open(self.engine)
                with self._lock:
                    if not (late := self._closed):
                        self.connection = opened
                if late:
                    self._give_back(opened)
                    refuse()
                self.unopened = None
        finally:
            self._opening.release()
        return opened

    def _is_ours(self, engine: sa.Engine) -> bool:
        """Whether `engine` is our engine, perhaps with other options, except those of a transaction."""
        ours = self.engine
        if engine is ours:
            return True
        given = engine.get_execution_options()
        if ours is not None and engine.pool is ours.pool:
            options = ours.get_execution_options()
            return all(given.get(name) == options.get(name) for name in _OF_TRANSACTIONS)
        if self._database is not None and same_database(engine.url, self._database) and engine not in _WARNED:
            _WARNED.add(engine)
            logger.warning(
                "ctx.session writes to %s by an engine of its own (its binds, or get_bind), so not in one transaction with "
                "the job; give the worker that engine", engine.url,
            )  # fmt: skip
        return False

    def _join(self, connection: sa.Connection) -> None:
        """Let the session's next transaction join ours, begun again if the handler rolled it back.

        After the handler's own commit() it joins by a savepoint, so that a later rollback() goes back no further.
        """
        root = self.session.get_transaction() or self.session.begin()
        if not connection.in_transaction():
            self._begin(connection)
        elif root is not self._root and self._root is not None:
            self.session.join_transaction_mode = "create_savepoint"
        self._root = root

    def _open(self, engine: sa.Engine) -> sa.Connection:
        """Open a connection and begin its transaction. A connection that broke in the pool is replaced: nothing was done on it yet."""
        self._pool = engine.pool
        left = getattr(engine.pool, "size", int)()
        while True:
            try:
                return self._open_one(engine)
            except DBAPIError as error:
                if not error.connection_invalidated or left <= 0:
                    raise
                left -= 1

    def _open_one(self, engine: sa.Engine) -> sa.Connection:
        try:
            connection = engine.connect()
        except Exception as error:  # not BaseException: a handler's timeout that comes meanwhile ends the attempt
            self._note_unopened(engine, error)
            raise
        try:
            options: dict[str, Any] = {}
            given = connection.get_execution_options()
            # Setting it where it is the default, and resetting it, would cost a sixth of a job that does one INSERT.
            is_default = connection.default_isolation_level == "READ COMMITTED" and "isolation_level" not in given
            self._altered = is_default and bool(getattr(connection.connection.dbapi_connection, "autocommit", False))
            if self._altered or not is_default:
                options["isolation_level"] = "READ COMMITTED"
            if (translated := self._translated(given)) is not (given.get("schema_translate_map") or _NO_MAP):
                options["schema_translate_map"] = translated
            if options:
                connection = connection.execution_options(**options)
            self._options = connection.get_execution_options()
            self._raw = driver.psycopg_of(connection)
            self._found = leftovers.begin(connection, self._raw)
            self._begin(connection)
        except BaseException as error:
            # The connection is open: an error of the application's listeners fails the attempt, unless the connection broke.
            if getattr(error, "connection_invalidated", False):
                self._note_unopened(engine, error)
            connection.close()
            raise
        return connection

    def _note_unopened(self, engine: sa.Engine, error: BaseException) -> None:
        # Not the error itself: with its traceback it would be a reference cycle, which only the garbage collector frees.
        self.unopened = engine, message_of(getattr(error, "orig", None) or error).strip() or type(error).__name__

    def _translate_for(self, connection: sa.Connection, engine: sa.Engine | None) -> None:
        """Use `engine`'s schema_translate_map from now on; several engines may share our connection."""
        if engine is not self._asked:
            self._asked = engine
            options = self._options if engine is None or engine is self.engine else engine.get_execution_options()
            connection.execution_options(schema_translate_map=self._translated(options))

    def _translated(self, options: Mapping[str, Any]) -> Mapping[str | None, str | None]:
        """The `schema_translate_map` for an engine or a connection with these options: its own, except for our tables."""
        own: Mapping[str | None, str | None] = options.get("schema_translate_map") or _NO_MAP
        named = schema_of(self._store.job)
        schema = self._translate.get(named, named)
        if own.get(named, named) == schema and self._translate.keys() <= own.keys():
            return own
        return {**self._translate, **own, named: schema}

    def _begin(self, connection: sa.Connection) -> None:
        connection.begin()
        begin(connection, self._raw)
        if self._idle is not None:
            value = f"{int(self._idle * 1000)}ms"
            connection.execute(sa.select(sa.func.set_config("idle_in_transaction_session_timeout", value, True)))

    def complete(self, changes: Sequence[Change]) -> list[RunEnding]:
        """Commit the handler's writes together with the changes of all its jobs. If a claim is no longer valid, its ending is `LOST`, and
        nothing is committed.

        `ToWrite`: nothing was committed, and the change must still be written, usually because the session was never used. In all cases call `close` next.
        """
        session = self.session
        if (connection := self._flushed()) is None:
            return [ToWrite(change) for change in changes]
        given = self._with_own_options(connection)
        command = self._command(connection, changes)
        endings: list[RunEnding] = [Written(change) for change in changes]
        if command is None:
            endings = endings_of(changes, self._write(connection, changes))
            if LOST in endings:
                return endings
        if given is not self._options:  # for the handler's listeners
            connection.execution_options(schema_translate_map=given.get("schema_translate_map"))
        if session.in_transaction():
            session.commit()
        self._closed = True  # from here on a task or thread that the handler left behind can begin nothing
        self.committing = {ending.change.id: ending.change for ending in endings if isinstance(ending, Written)}
        if command is None:
            connection.commit()
        elif not commit(connection, self._raw, command):
            return [LOST]
        return endings

    def _flushed(self) -> sa.Connection | None:
        """Flush the session. Returns its connection, in its transaction; None: the session was not used, or only for other databases."""
        session = self.session
        if self._is_left_busy():
            raise SessionUnavailable(
                "the handler left a COPY or another command open on the connection of ctx.session; nothing is committed"
            )
        session.flush()
        if self.connection is None:
            if session.autobegin or session.in_transaction():
                session.commit()  # its listeners may write
            if self.connection is None:
                return None
        connection = self.connection
        if not connection.in_transaction():
            self._begin(connection)  # the handler rolled back its writes, and has not written since
        return connection

    def _with_own_options(self, connection: sa.Connection) -> Mapping[str, Any]:
        """Undo the options that the handler has set on the connection for its own statements. Returns them."""
        given: Mapping[str, Any] = connection.get_execution_options()
        if given is not self._options:
            translate = self._options.get("schema_translate_map")
            connection.execution_options(schema_translate_map=translate, stream_results=False, yield_per=None)
        return given

    def commit_step(self, record: Callable[[sa.Connection], None]) -> bool:
        """Commit the writes together with the record of a step; `record` raises if the claim is no longer valid.

        False: the session was never used, so nothing was committed and the step must still be recorded. Call `close` next in both cases.
        """
        session = self.session
        session.flush()
        if (connection := self.connection) is None:
            return False
        if not connection.in_transaction():
            self._begin(connection)
        translate = self._options.get("schema_translate_map")
        connection.execution_options(schema_translate_map=translate, stream_results=False, yield_per=None)
        record(connection)
        if session.in_transaction():
            session.commit()
        self._closed = True
        connection.commit()
        return True

    def _is_left_busy(self) -> bool:
        """Whether a command of the handler is still under way. If so the connection is closed, because a ROLLBACK would wait for
        the command's end, too.
        """
        if not driver.is_busy(self._raw):
            return False
        if self.connection is not None:
            self.connection.invalidate()
        return True

    def _command(self, connection: sa.Connection, changes: Sequence[Change]) -> str | None:
        """The text that writes a single change and commits, after the session's own commit(); None: write the changes before that.

        None where a listener or an override sees the session's commit, because a lost claim would undo the commit that they
        saw; and where the session writes by other engines, because its commit() would commit those writes.
        """
        session = self.session
        overridden = "commit" in vars(session) or type(session).commit is not Session.commit
        heard = session.dispatch.before_commit or session.dispatch.after_commit
        # A mode that is not `_JOINED` was set by the handler: its commit() may end our transaction.
        is_ours = session.join_transaction_mode in _JOINED and not self._others
        if len(changes) > 1 or overridden or heard or not is_ours:
            return None
        return command(connection, self._raw, changes[0], store=self._store)

    def _write(self, connection: sa.Connection, changes: Sequence[Change]) -> Mapping[int, Answer]:
        """Write `changes`. Rows that should be deleted and cannot be are kept for now."""
        if not any(change.deletes for change in changes):
            return self._apply(connection, changes)
        try:
            # A row of the application may reference a row, or be locked. A deferred constraint is checked only at the
            # COMMIT: then the attempt fails.
            with connection.begin_nested():
                return self._apply(connection, changes)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            fault = fault_of(error)
            kept = [kept_for_now(change, fault) if change.deletes else change for change in changes]
            return self._apply(connection, kept)

    def _apply(self, connection: sa.Connection, changes: Sequence[Change]) -> Mapping[int, Answer]:
        if len(changes) == 1:
            return {changes[0].id: self._store.apply_one(connection, changes[0])}
        return self._store.apply(connection, changes, waiting=True)

    def close(self, *, failed: bool = False) -> None:
        """Roll back what was not committed and give the connection back, or close it.

        `failed`: the attempt has failed, perhaps because of state that an earlier handler left on the connection.
        """
        session = self.session
        with self._lock:
            committing, self._closed = self._closed, True
        try:
            if not committing:
                self._is_left_busy()
            try:
                self._close_session()
            except IllegalStateChangeError:
                # A task or thread that was left behind is connecting the session to another database: close that connection then.
                event.listen(session, "after_begin", _close_late)
                with suppress(IllegalStateChangeError):  # it may have connected just now
                    self._close_session()
        finally:
            # Remove the session's references to us. They would make a reference cycle, which only the garbage collector frees: with
            # threads, that took a fifth of the time of a job that does one INSERT.
            session.get_bind = refuse  # type: ignore[method-assign]
            for name in ("close", "reset"):
                vars(session).pop(name, None)
            vars(session).update(self._own)
            with self._lock:
                connection, self.connection = self.connection, None
            if connection is not None:
                self._give_back(connection, failed=failed)

    def _give_back(self, connection: sa.Connection, *, failed: bool = False) -> None:
        if connection.engine.pool is not self._pool:
            connection.detach()  # the worker has left and closed its pool: nothing would close what goes back
        elif not connection.closed and not connection.invalidated:
            # A connection that was set to AUTOCOMMIT would come back without it.
            spoiled = self._altered or (self._found is not None and leftovers.is_spoiled(self._raw, self._found))
            if spoiled or (failed and leftovers.may_be_dropped(connection.engine.pool)):
                connection.invalidate()
        connection.close()


def endings_of(changes: Sequence[Change], answers: Mapping[int, Answer]) -> list[RunEnding]:
    """The endings of the jobs with these answers. If a claim was lost, the other changes must still be written."""
    is_lost = Answer.LOST in answers.values()
    endings: list[RunEnding] = []
    for change in changes:
        answer = answers[change.id]
        if is_lost:
            endings.append(LOST if answer is Answer.LOST else ToWrite(change))
        else:
            endings.append(Written(change.cancelled if answer is Answer.CANCELLED else change))
    return endings


def _close_late(session: Session, transaction: SessionTransaction, connection: sa.Connection) -> NoReturn:
    """Close a connection that a session gets after its job's end."""
    connection.close()
    refuse()


def refuse(*_: Any, **__: Any) -> NoReturn:
    """Refuse a connection to a session whose job has ended: nothing would close it."""
    raise SessionUnavailable("the job has ended, and its ctx.session with it")


# ---- The commands that a thread sends itself around a handler's own statements: BEGIN, and the job's completion with COMMIT.

#: Values of `psycopg.pq`'s TransactionStatus and PipelineStatus. The package must not import psycopg.
_IDLE, _IN_TRANSACTION, _NO_PIPELINE = 0, 2, 0
#: By `psycopg.IsolationLevel`. To reset a connection whose level was changed, SQLAlchemy sets level 2.
_BEGIN = {None: b"BEGIN", 2: b"BEGIN ISOLATION LEVEL READ COMMITTED"}

#: The function's text names the table. After a schema was renamed, that is another table.
_MAY = sa.text(
    "SELECT pg_catalog.has_function_privilege(oid, 'EXECUTE') AND pg_catalog.strpos(prosrc, :table) > 0 "
    "FROM pg_catalog.pg_proc WHERE oid = pg_catalog.to_regprocedure(CAST(:function AS text))"
)
#: The parameters of the function for a job without a result, and for a job with a result.
_PARAMETERS = ("(bigint,bigint,double precision)", "(bigint,bigint,double precision,jsonb)")
#: The SQLSTATE of the schema's function for a claim that is no longer valid.
_LOST = "SJQ01"
#: SQLSTATEs if the function is gone, or this role may no longer call it.
_GONE = frozenset({"42883", "42501"})


#: By pool, the functions that its connections may call, by schema, name and whether there is a result; and the lock that a thread holds
#: while it asks.
_functions: WeakKeyDictionary[sa.Pool, tuple[dict[tuple[str, str, bool], str | None], Lock]] = WeakKeyDictionary()


def begin(connection: sa.Connection, raw: Any) -> None:
    """BEGIN now, where psycopg would send it before the first statement. `raw`: the result of `driver.psycopg_of`.

    With 32 threads and one INSERT a job, the system then switches between them 14 times a job instead of 19. It also finds a
    connection that broke in the pool before the handler has done anything: then this raises what SQLAlchemy would.
    """
    if not _is_a_threads(connection, raw) or raw.autocommit:
        return
    command = _BEGIN.get(raw.isolation_level)
    if command is None or (raw.read_only, raw.deferrable) != (None, None):
        return  # psycopg begins it
    reason = b""
    with raw.lock, suppress(connection.dialect.loaded_dbapi.Error):
        if raw.pgconn.transaction_status == _IDLE:
            reason = raw.pgconn.exec_(command).error_message
    if reason:  # BEGIN itself cannot fail
        raw.close()
        error = connection.dialect.loaded_dbapi.OperationalError(reason.decode(errors="replace").strip())
        raise as_sqlalchemy(error, "BEGIN", {}, connection) from error


def command(connection: sa.Connection, raw: Any, change: Change, *, store: Store) -> str | None:
    """The text to `commit` this change with.

    None if the change is more than a completion, if a listener or log must see each statement, or if this connection cannot do it.
    """
    if not change.plain or change.deletes or not _is_a_threads(connection, raw) or is_heard(connection, "commit"):
        return None
    if (raw.pgconn.transaction_status, raw.pgconn.pipeline_status) != (_IN_TRANSACTION, _NO_PIPELINE):
        return None
    result = "" if change.result is None else _literal(raw, change.result)
    if result is None:
        return None
    name = store.completion if change.workflow is None else store.member_completion
    function = _function(connection, store, name, recording=bool(result))
    if function is None:
        return None
    retain = "NULL" if change.retain is None else repr(float(change.retain))
    return f"SELECT {function}({change.id}, {change.claim_token}, {retain}{result}); COMMIT"


def _literal(raw: Any, result: str) -> str | None:
    """JSON text as one more argument of the function. None: the connection's encoding lacks one of its characters."""
    from psycopg.pq import Escaping

    encoding = raw.info.encoding
    try:
        literal = bytes(Escaping(raw.pgconn).escape_literal(result.encode(encoding))).decode(encoding)
    except UnicodeEncodeError:
        return None
    return f", {literal}::jsonb"


def commit(connection: sa.Connection, raw: Any, command: str) -> bool:
    """Complete the job and commit. False: its claim was lost, and the transaction is to be rolled back.

    The server stops at the first error, so without a completion there is no COMMIT. Raises what SQLAlchemy would.
    """
    dbapi = connection.dialect.loaded_dbapi
    try:
        with raw.lock:
            result = raw.pgconn.exec_(command.encode(raw.info.encoding))
        if raw.closed:  # `result` is the last message; the server's reason, if it gave a reason, came before
            raise dbapi.OperationalError(raw.pgconn.error_message.decode(raw.info.encoding, "replace").strip())
        if result.error_message:
            raise dbapi.errors.error_from_result(result, raw.info.encoding)
    except dbapi.Error as error:
        if error.sqlstate == _LOST:
            return False
        if error.sqlstate in _GONE:
            _functions.pop(connection.engine.pool, None)
        raise as_sqlalchemy(error, command, {}, connection) from error
    try:
        connection.commit()  # updates SQLAlchemy and the driver; the server has committed already
    except Exception as error:
        logger.warning("a handler's connection is closed, after the commit: %s", error)
        connection.invalidate()
    return True


def _function(connection: sa.Connection, store: Store, completion: str, *, recording: bool) -> str | None:
    """The function that completes a job of this store. None: it does not exist, or this role may not call it.

    Asked once for each pool.
    """
    pool = connection.engine.pool
    functions, lock = _functions.get(pool) or _functions.setdefault(pool, ({}, Lock()))
    key = store.schema_on(connection), completion, recording
    if key not in functions:
        with lock:
            if key not in functions:
                schema, name = quote(key[0]), connection.dialect.identifier_preparer.quote
                function, table = f"{schema}.{name(completion)}", store.job.__tablename__
                given = {"function": f"{function}{_PARAMETERS[recording]}", "table": f" {schema}.{name(table)} "}
                functions[key] = function if connection.scalar(_MAY, given) else None
    return functions[key]


def _is_a_threads(connection: sa.Connection, raw: Any) -> bool:
    """Whether `raw` is psycopg's connection for a thread.

    It is not with another driver, for a task of an event loop, or where psycopg's classes were replaced, for example by a class that
    counts or traces statements.
    """
    dialect = connection.dialect
    if raw is None or dialect.driver != "psycopg" or dialect.is_async:
        return False
    dbapi = dialect.loaded_dbapi
    return type(raw) is dbapi.Connection and raw.cursor_factory is dbapi.Cursor
