"""The tables: `Job` and its companions, as SQLAlchemy 2 declarative classes.

`select(Job)` is the query API; jobs are ordinary rows:

>>> from sqlalchemy import select
>>> late = select(Job).where(Job.queue == "mail", Job.is_retrying)

They live in the schema `sa_jobqueue`; `schema_translate_map={"sa_jobqueue": "other"}` moves them and nothing else.
The tables are made by `sa_jobqueue.migrations`, which is frozen per version; a test compares the two.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, cast

from pydantic_core import from_json
from sqlalchemy import (
    DDL,
    BigInteger,
    CheckConstraint,
    ClauseElement,
    ColumnElement,
    Connection,
    DateTime,
    Dialect,
    Identity,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Text,
    TypeDecorator,
    and_,
    event,
    func,
    inspect,
    literal_column,
    select,
    text,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, Mapped, Mapper, mapped_column, validates
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from .errors import OptionError, StatusError
from .lifecycle import FINISHED, LIVE, JobStatus

__all__ = ["SCHEMA", "Base", "Job", "SchemaVersion", "Uptime", "WorkerRow", "status_in", "status_literal"]

#: The schema the models name; `schema_translate_map` gives it another name.
SCHEMA = "sa_jobqueue"


class StatusText(TypeDecorator[JobStatus]):
    """A status: text in the table (a CHECK holds the list), `JobStatus` in Python."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: JobStatus | str | None, dialect: Dialect) -> str | None:
        return None if value is None else JobStatus(value).value

    def process_result_value(self, value: str | None, dialect: Dialect) -> JobStatus | None:
        return None if value is None else JobStatus(value)


def checked_due(value: object) -> datetime | timedelta:
    """`value` if it can be a due time, a datetime in UTC or a delay; else raise OptionError."""
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise OptionError(f"run_at must be a delay of 0 seconds or more, not {value!r}; func.now() is at once")
        return value
    if not isinstance(value, datetime):
        raise OptionError(f"run_at must be a datetime with a time zone or a timedelta from now, not {value!r}")
    if value.utcoffset() is None:
        raise OptionError(f"run_at must have a time zone, not the naive {value!r}: use datetime.now(UTC) or the like")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise OptionError(f"run_at is outside of the calendar in UTC: {value!r}") from None


#: The due time of a job that nobody delays.
AT_ONCE = timedelta(0)


class JsonText(str):
    """JSON that is ready to be stored: a job carries it from `enqueue` to the INSERT, unless it is read before."""

    __slots__ = ()


class JsonObject(TypeDecorator[dict[str, Any]]):
    """A jsonb object. A `JsonText` goes to the driver as it is."""

    impl = JSONB
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Any:
        encode: Any = super().bind_processor(dialect)
        encoded = encode({})
        # Most drivers take text. Psycopg takes an object, which encodes what it holds when it is sent.
        wrapper = None if isinstance(encoded, (str, bytes)) else type(encoded)

        def process(value: Any) -> Any:
            if type(value) is not JsonText:
                return encode(value)
            text = str.__str__(value)
            return text if wrapper is None else wrapper(text, dumps=str)

        return process

    def coerce_compared_value(self, op: Any, value: Any) -> TypeEngine[Any]:
        return self.impl_instance.coerce_compared_value(op, value)


# A mapped attribute that decodes its `JsonText` when it is read.
class _DecodedOnRead(InstrumentedAttribute[Any]):  # pyright: ignore[reportIncompatibleVariableOverride]
    __slots__ = ()
    inherit_cache = True

    def __get__(self, instance: object | None, owner: Any) -> Any:
        value = super().__get__(instance, owner)
        if type(value) is JsonText:
            value = vars(instance)[self.key] = from_json(value)  # no change of the row's: the INSERT is as before
        return value


def _decode_on_read(_class: type, _key: str, attribute: InstrumentedAttribute[Any]) -> None:
    """Make each mapped attribute of this type one that decodes, in subclasses too."""
    columns = getattr(attribute.property, "columns", ())
    if columns and isinstance(columns[0].type, JsonObject):
        attribute.__class__ = _DecodedOnRead


class _DueText(TypeDecorator[Any]):
    """How a due time travels: "+90.000000 seconds" or an absolute time, as text."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: datetime | timedelta | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        if value == AT_ONCE:
            return "+0 seconds"
        due = checked_due(value)
        if isinstance(due, timedelta):
            # Seconds alone: in an interval a day is 23 hours when the session's zone changes to summer time.
            return f"+{due.total_seconds():.6f} seconds"
        return due.isoformat()


class _DueAt(FunctionElement[datetime]):
    """The schema's function `due_at(text)`, under the schema that the tables have at the moment."""

    type = DateTime(timezone=True)
    inherit_cache = True


@compiles(_DueAt)
def _compile_due_at(element: _DueAt, compiler: SQLCompiler, **options: Any) -> str:
    function = compiler.preparer.format_table(Job.__table__, name="due_at")
    return f"{function}({compiler.process(element.clauses, **options)})"


class DueTime(TypeDecorator[datetime]):
    """A timestamptz that takes a `timedelta` too: that long after the database's now.

    So 1,000 jobs, delayed and not, are one INSERT: the value is always one parameter of one type (an expression on
    the attribute would make every row a statement of its own). A function in the schema tells the two kinds apart,
    because SQLAlchemy's batches allow a parameter once per column (asyncpg fails otherwise; seen on 2.1.9).
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def bind_expression(self, bindparam: BindParameter[Any]) -> ColumnElement[Any]:
        return _DueAt(type_coerce(bindparam, _DueText()))

    def coerce_compared_value(self, op: Any, value: Any) -> TypeEngine[Any]:
        return DateTime(timezone=True).coerce_compared_value(op, value)


class Base(DeclarativeBase):
    """The registry of the queue's own tables, apart from the application's."""

    metadata = MetaData(schema=SCHEMA)
    type_annotation_map: ClassVar = {
        datetime: DateTime(timezone=True),
        str: Text(),
    }


event.listen(Base, "attribute_instrument", _decode_on_read, propagate=True)


def status_literal(status: JobStatus) -> ColumnElement[JobStatus]:
    """`status` written into the SQL: a generic plan cannot prove that a parameter implies a partial index."""
    return literal_column(f"'{status.value}'", StatusText())


def status_in(column: Any, statuses: Any) -> ColumnElement[bool]:
    """`column IN (...)` over literals, in the order of the life cycle."""
    wanted = [status for status in JobStatus if status in statuses]
    if len(wanted) == 1:
        one: ColumnElement[bool] = column == status_literal(wanted[0])
        return one
    several: ColumnElement[bool] = column.in_([status_literal(status) for status in wanted])
    return several


# What `enqueue()` does not set is left out of the INSERT: it would be a NULL to send, and to parse, for each row.
_UNSAID_TIME, _UNSAID_TEXT = DateTime(timezone=True).evaluates_none(), Text().evaluates_none()
_UNSAID_NUMBER = BigInteger().evaluates_none()
_UNSAID_STATUS = StatusText().evaluates_none()
_OBJECT = JsonObject().evaluates_none()


#: What a row begins with, of what only the queue's statements change.
_AT_FIRST: Final[dict[str, object]] = {"status": JobStatus.QUEUED, "claims": 0, "claim_token": None}


class Job(Base):
    """One job. Made by `enqueue()`, changed by statements; users read it."""

    __tablename__ = "job"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=False), primary_key=True)
    # These three come first, so that a merge is refused before it has copied anything.
    # Of `status` and `errors` the model does not say what the table's default is. An INSERT would return it, and whoever
    # enqueues would need the right to read it of all jobs; see below the class.
    status: Mapped[JobStatus] = mapped_column(_UNSAID_STATUS)
    claims: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """How often it was claimed."""
    claim_token: Mapped[int | None] = mapped_column(_UNSAID_NUMBER)
    """The fence: a random number that each claim stores, and that each write after it asks for."""
    run_at: Mapped[datetime] = mapped_column(DueTime, server_default=func.now(), default=AT_ONCE)
    """When it is due. A retry or a snooze moves it."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    claimed_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    lease_expires_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    finished_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    purge_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    """When the row may be deleted; None: never."""
    cancel_requested_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    priority: Mapped[int] = mapped_column(SmallInteger, server_default=text("4"))
    """0 to 9, higher first."""
    attempt: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    max_attempts: Mapped[int] = mapped_column(SmallInteger, server_default=text("10"))
    rescues: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    """How often its worker died, or left while it ran."""
    queue: Mapped[str] = mapped_column(server_default=text("'default'"))
    task: Mapped[str]
    args: Mapped[dict[str, Any]] = mapped_column(_OBJECT, server_default=text("'{}'::jsonb"))
    meta: Mapped[dict[str, Any]] = mapped_column(_OBJECT, server_default=text("'{}'::jsonb"))
    """Tags, trace context: whatever the producer wants to travel along."""
    worker: Mapped[str | None] = mapped_column(_UNSAID_TEXT)
    """The worker process that holds it, or held it last."""
    errors: Mapped[list[dict[str, Any]]] = mapped_column(JSONB)
    """One entry per failed attempt or rescue: at, attempt, type, message, traceback."""
    result: Mapped[Any | None] = mapped_column(JSONB)

    @validates("status", "claims", "claim_token")
    def _refuse(self, key: str, value: object) -> object:
        state = inspect(self)
        current = self.__dict__.get(key, _AT_FIRST[key] if state.key is None else None)
        if value == current:
            return current
        if state.key is None and state.session is not None and "task" not in self.__dict__:
            state.session.expunge(self)  # half made by a merge, for its row is gone
        raise StatusError(
            f"job.{key} is not set by hand, nor by merging an older object (to {value!r}): "
            "session.execute(cancel_jobs(Job.id == ...)), retry_jobs(...) or discard_jobs(...) from "
            "sa_jobqueue.statements change it, in this same transaction"
        )

    @validates("run_at")
    def _refuse_time(self, key: str, value: Any) -> Any:
        if (
            value is not None
            and value is not AT_ONCE
            and not hasattr(value, "__clause_element__")
            and not isinstance(value, ClauseElement)
        ):
            checked_due(value)  # here, and not in the flush, which would lose what else is in it
        return value

    @hybrid_property
    def is_scheduled(self) -> bool:
        """Queued for a later time."""
        # Before it is flushed it may be a delay, or not be said.
        due = cast("datetime | timedelta | None", self.run_at)
        if self.status != JobStatus.QUEUED or due is None:
            return False
        return due > timedelta(0) if isinstance(due, timedelta) else due > datetime.now(UTC)

    @is_scheduled.inplace.expression
    @classmethod
    def _is_scheduled(cls) -> ColumnElement[bool]:
        return and_(cls.status == status_literal(JobStatus.QUEUED), cls.run_at > func.now())

    @hybrid_property
    def is_retrying(self) -> bool:
        """Queued again after a failed attempt."""
        return self.status == JobStatus.QUEUED and (self.attempt or 0) > 0

    @is_retrying.inplace.expression
    @classmethod
    def _is_retrying(cls) -> ColumnElement[bool]:
        return and_(cls.status == status_literal(JobStatus.QUEUED), cls.attempt > 0)

    @hybrid_property
    def is_live(self) -> bool:
        """Not at its end yet: queued, blocked or running."""
        return self.status in LIVE

    @is_live.inplace.expression
    @classmethod
    def _is_live(cls) -> ColumnElement[bool]:
        return status_in(cls.status, LIVE)

    @hybrid_property
    def is_finished(self) -> bool:
        """Completed, failed or cancelled."""
        return self.status in FINISHED

    @is_finished.inplace.expression
    @classmethod
    def _is_finished(cls) -> ColumnElement[bool]:
        return status_in(cls.status, FINISHED)

    def __init__(self, **columns: Any) -> None:
        super().__init__(**columns)
        vars(self).pop(
            "status", None
        )  # not for the INSERT to say: who may enqueue may not make a job that runs, or is done

    def __repr__(self) -> str:
        state, key = self.__dict__, inspect(self).identity
        if key is not None and "task" not in state:
            return f"<Job {key[0]}, not loaded>"
        status = state.get("status", None if key else JobStatus.QUEUED)
        return f"<Job {state.get('id')} {state.get('task')!r} in {state.get('queue')!r}: {status}>"

    __table_args__ = (
        CheckConstraint(
            "status IN ('queued', 'blocked', 'running', 'completed', 'failed', 'cancelled')", name="job_status_check"
        ),
        CheckConstraint("priority BETWEEN 0 AND 9", name="job_priority_check"),
        CheckConstraint("max_attempts >= 1", name="job_max_attempts_check"),
        CheckConstraint("char_length(queue) BETWEEN 1 AND 200", name="job_queue_check"),
        CheckConstraint("char_length(task) BETWEEN 1 AND 200", name="job_task_check"),
        Index("job_claim_idx", "queue", "priority", "run_at", "id", postgresql_where=text("status = 'queued'")),
        Index("job_running_idx", "id", postgresql_where=text("status = 'running'")),
        Index("job_failed_idx", "id", postgresql_where=text("status = 'failed'")),
        Index("job_purge_idx", "purge_at", postgresql_where=text("purge_at IS NOT NULL")),
    )


event.listen(Job.status, "init_scalar", lambda *_: JobStatus.QUEUED, retval=True, propagate=True)
event.listen(Job.errors, "init_scalar", lambda *_: [], retval=True, propagate=True)

event.listen(
    Job.__table__,
    "after_create",
    DDL(  # type: ignore[no-untyped-call]
        "ALTER TABLE %(fullname)s ALTER COLUMN status SET DEFAULT 'queued', ALTER COLUMN errors SET DEFAULT '[]'::jsonb"
    ),
)
# `postgresql_with` on a Table is new in SQLAlchemy 2.1; this is the same on 2.0.
event.listen(
    Job.__table__,
    "after_create",
    DDL(  # type: ignore[no-untyped-call]
        "ALTER TABLE %(fullname)s SET ("
        # Room for an update on the same page; renewals of a lease stay HOT.
        "fillfactor = 85, "
        # A queue's dead rows come by traffic, not by size: no scale factor.
        "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, "
        "autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000, "
        "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000)"
    ),
)
# The claim and the completion leave an entry each beside the first one. Without room for them every page is split, and
# searched for dead entries before: a sixth of what a job costs the server.
event.listen(
    Job.__table__,
    "after_create",
    DDL("ALTER INDEX %(schema)s.job_pkey SET (fillfactor = 45)"),  # type: ignore[no-untyped-call]
)


class WorkerRow(Base):
    """One worker process that is, or was until `seen_at`, alive."""

    __tablename__ = "worker"

    id: Mapped[uuid.UUID] = mapped_column(UUID(as_uuid=True), primary_key=True)
    """New at each start; never a reusable host name."""
    host: Mapped[str]
    pid: Mapped[int] = mapped_column(Integer)
    queues: Mapped[list[str]] = mapped_column(ARRAY(Text))
    concurrency: Mapped[int] = mapped_column(Integer)
    version: Mapped[str]
    """The release of sa_jobqueue it runs."""
    started_at: Mapped[datetime] = mapped_column(server_default=func.now())
    seen_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Uptime(Base):
    """Since when, and until when, leases could be renewed, without a break in which they may have run out."""

    __tablename__ = "uptime"

    lease: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """For leases of so many milliseconds: whether a break is too long depends on that."""
    since: Mapped[datetime]
    until: Mapped[datetime]


class SchemaVersion(Base):
    """The versions of the schema that were applied; the highest is the current one."""

    __tablename__ = "schema_version"

    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    applied_at: Mapped[datetime] = mapped_column(server_default=func.now())
    compatible_with: Mapped[int] = mapped_column(Integer, server_default=text("1"))
    """Releases made for this version of the schema, or a later one, can work with it."""


@event.listens_for(Job, "after_insert", propagate=True)
def _know_what_came_of_it(mapper: Mapper[Job], connection: Connection, job: Job) -> None:
    """After the INSERT the job is queued. A delay has become a time; both are counted from the transaction's now()."""
    known = vars(job)
    known["status"] = JobStatus.QUEUED  # as `set_committed_value` would, which looks for an older value
    known.setdefault("errors", [])
    due = known.get("run_at")
    if isinstance(due, timedelta):
        set_committed_value(job, "run_at", job.created_at + due)


@event.listens_for(Job, "after_update", propagate=True)
def _load_time(mapper: Mapper[Job], connection: Connection, job: Job) -> None:
    """After the UPDATE too. At once: under AsyncSession a lazy load would fail."""
    if isinstance(job.__dict__.get("run_at"), timedelta):
        set_committed_value(job, "run_at", connection.scalar(select(Job.run_at).where(Job.id == job.id)))
