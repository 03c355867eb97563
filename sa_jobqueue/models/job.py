"""The job as a mapped class: what all job tables have, and the package's own table."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sqlalchemy import (
    DDL,
    BigInteger,
    CheckConstraint,
    ClauseElement,
    Column,
    Connection,
    DateTime,
    FetchedValue,
    FromClause,
    Identity,
    Index,
    Integer,
    SmallInteger,
    Text,
    event,
    func,
    inspect,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import (
    ColumnProperty,
    Mapped,
    MappedSQLExpression,
    Mapper,
    MapperProperty,
    column_property,
    declared_attr,
    mapped_column,
    validates,
)
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.schema import SchemaItem

from ..errors import OptionError, StatusError
from ..lifecycle import JobStatus
from .base import SCHEMA, Base
from .companions import Companions, companions_in, place_in
from .due_time import AT_ONCE, DueTime, checked_due
from .json_text import JsonObject, decode_on_read
from .own_table import begin_own_table, column_names, refuse_unbegun, schema_of
from .readings import JobReadings
from .status import StatusText
from .subject import SubjectColumns, subject_index

__all__ = ["Job", "JobMixin", "companions_of", "is_job_class", "own_column"]

# Left out of the INSERT where `enqueue()` does not set them. Else each row would send a NULL for each, to be parsed.
_UNSAID_TIME, _UNSAID_TEXT = DateTime(timezone=True).evaluates_none(), Text().evaluates_none()
_UNSAID_NUMBER = BigInteger().evaluates_none()
_UNSAID_STATUS = StatusText().evaluates_none()
_OBJECT = JsonObject().evaluates_none()
_LIMIT = DueTime(SCHEMA).evaluates_none()


#: The first values of the attributes that only the queue's statements change.
_AT_FIRST: Final[dict[str, object]] = {"status": JobStatus.QUEUED, "claims": 0, "claim_token": None}


def _reported(job: Any, what: str, *, name: str) -> MappedSQLExpression[Any]:
    """What the handler has reported since the last claim. Deferred: it is in a table of its own, and few ask for it."""
    progress = companions_in(schema_of(job)).progress
    found = select(getattr(progress, what)).where(progress.job_id == job.id, progress.claim_token == job.claim_token)
    return column_property(found.correlate_except(progress).scalar_subquery().label(name), deferred=True)


if TYPE_CHECKING:
    from sqlalchemy.orm.decl_api import DeclarativeAttributeIntercept

    # As a DeclarativeBase has it: a type checker takes `type[JobMixin]` for hashable then.
    class _MappedBelow(metaclass=DeclarativeAttributeIntercept): ...

else:
    _MappedBelow = object


class JobMixin(JobReadings, SubjectColumns, _MappedBelow):
    """What a job is: the columns, constraints and indexes of a job table, and what its rows can do.

    `Job` is the package's own table. For one with columns of yours, map a class on your own base, in a schema that has no other
    jobs; what else a queue needs comes into that schema with `sa_jobqueue.migrations.upgrade`:

        class Job(JobMixin, Base):
            __table_args__ = {"schema": "shop_queue"}

            tenant_id: Mapped[int] = mapped_column(ForeignKey("tenant.id"))

    Raises ConfigurationError, when the class is made, for what cannot work.
    """

    if TYPE_CHECKING:
        __table__: ClassVar[FromClause]
        __mapper__: ClassVar[Mapper[Any]]

    __tablename__: Any = "job"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=False), primary_key=True)
    # These three come first, so that a merge is refused before it has copied a value.
    # The model does not say the table's defaults of `status` and `errors`. An INSERT would return them, and a role that only
    # enqueues would need the right to read them of all jobs; see below the class.
    status: Mapped[JobStatus] = mapped_column(_UNSAID_STATUS)
    claims: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """How often it was claimed."""
    claim_token: Mapped[int | None] = mapped_column(_UNSAID_NUMBER)
    """The fence: a random number that each claim stores, and that each write after it asks for."""
    run_at: Mapped[datetime] = mapped_column(DueTime(SCHEMA), server_default=func.now(), default=AT_ONCE)
    """When it is due. A retry or a snooze moves it."""
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())
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
    """How often its worker died, or left while the job ran."""
    queue: Mapped[str] = mapped_column(Text, server_default=text("'default'"))
    task: Mapped[str] = mapped_column(Text)
    args: Mapped[dict[str, Any]] = mapped_column(_OBJECT, server_default=text("'{}'::jsonb"))
    meta: Mapped[dict[str, Any]] = mapped_column(_OBJECT, server_default=text("'{}'::jsonb"))
    """Tags, trace context: what the producer sends along."""
    worker: Mapped[str | None] = mapped_column(_UNSAID_TEXT)
    """The worker process that holds it, or held it last."""
    errors: Mapped[list[dict[str, Any]]] = mapped_column(JSONB)
    """One entry per failed attempt or rescue: at, attempt, type, message, traceback."""
    result: Mapped[Any | None] = mapped_column(JSONB)
    """What the handler returned, as plain JSON, if its task says `record=True`."""
    uniqueness: Mapped[dict[str, Any] | None] = mapped_column(JsonObject(none_as_null=True).evaluates_none())
    """The key of a unique job, and until when it has it: see `Unique`."""
    expires_at: Mapped[datetime | None] = mapped_column(_LIMIT)
    """If no attempt was begun by then, the job is cancelled."""
    deadline_at: Mapped[datetime | None] = mapped_column(_LIMIT)
    """After that time no attempt begins or goes on."""
    # The trigger's to say: the INSERT returns it. 0: of a job that could not be seen.
    _duplicate_of: Mapped[int | None] = mapped_column("duplicate_of", _UNSAID_NUMBER, server_default=FetchedValue())

    schedule_id: Mapped[int | None] = mapped_column(_UNSAID_NUMBER)
    """The schedule that made it."""
    tick_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    """The time of the schedule that it was made for: the last one, if it stands for several."""
    ticks: Mapped[int | None] = mapped_column(Integer().evaluates_none())
    """For how many times of the schedule it stands."""
    concurrency_key: Mapped[str | None] = mapped_column(Text(collation="C").evaluates_none())
    """By what it is ordered, limited and served in turn: its `key`, or a name that a claim gives to the jobs of a limited task."""
    units: Mapped[int | None] = mapped_column(SmallInteger().evaluates_none())
    """How much of a rate it takes; None: 1."""
    workflow_id: Mapped[int | None] = mapped_column(_UNSAID_NUMBER)
    """The workflow that it is a member of."""
    blocked_by: Mapped[int | None] = mapped_column(_UNSAID_NUMBER)
    """While it is blocked: a job that it waits for; 0: for some of several; or minus its workflow's id, until that is found."""
    inputs: Mapped[int | None] = mapped_column(SmallInteger().evaluates_none())
    """How many of its first parameters are results of others; 0: one is, a list of them all. None: none is."""
    ready_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    """The due time at which a claim has let it take its turn among the jobs with keys; None: it was due when it was enqueued."""

    @declared_attr
    def progress(cls) -> Mapped[float | None]:  # noqa: N805
        """How far the handler said that it is, 0 to 1; None if it has not said anything since the last claim.
        `select(Job.id, Job.progress)` reads it in any session; of a loaded job it is read when it is asked for, or with `undefer(Job.progress)`.
        """
        return _reported(cls, "fraction", name="progress")

    @declared_attr
    def progress_message(cls) -> Mapped[str | None]:  # noqa: N805
        """What the handler said with it, or None. It is read as `progress` is."""
        return _reported(cls, "message", name="progress_message")

    @validates("status", "claims", "claim_token")
    def _refuse(self, key: str, value: object) -> object:
        state = inspect(self)
        current = self.__dict__.get(key, _AT_FIRST[key] if state.key is None else None)
        if value == current:
            return current
        if state.key is None and state.session is not None and "task" not in self.__dict__:
            state.session.expunge(self)  # half made by a merge: its row is gone
        raise StatusError(
            f"job.{key} is not set by hand, nor by merging an older object (to {value!r}): "
            "session.execute(cancel_jobs(Job.id == ...)), retry_jobs(...) or discard_jobs(...) from "
            "sa_jobqueue.statements change it, in this same transaction"
        )

    @validates("run_at", "expires_at", "deadline_at")
    def _refuse_time(self, key: str, value: Any) -> Any:
        if (
            value is not None
            and value is not AT_ONCE
            and not hasattr(value, "__clause_element__")
            and not isinstance(value, ClauseElement)
        ):
            checked_due(value, key)  # here and not in the flush, which would fail with all that it holds
        return value

    def __init_subclass__(cls, **options: Any) -> None:
        own = begin_own_table(cls, JobMixin, constraints_and_indexes)
        super().__init_subclass__(**options)  # maps it
        if own is not None:
            own.check()
            place_in(own.table, own.schema)
            event.listen(cls.status, "init_scalar", lambda *_: JobStatus.QUEUED, retval=True, propagate=True)
            event.listen(cls.errors, "init_scalar", lambda *_: [], retval=True, propagate=True)

    def __init__(self, **columns: Any) -> None:
        super().__init__(**columns)
        # The INSERT does not set it, so that a role that may enqueue cannot insert a job that runs or is done.
        vars(self).pop("status", None)


event.listen(JobMixin, "instrument_class", refuse_unbegun, propagate=True)  # before the first class is mapped


def constraints_and_indexes() -> tuple[SchemaItem, ...]:
    """Those of a job table. Each table needs its own."""
    return (
        CheckConstraint(
            "status = ANY ('{queued,blocked,running,completed,failed,cancelled}'::text[])", name="job_status_check"
        ),
        CheckConstraint("priority BETWEEN 0 AND 9", name="job_priority_check"),
        CheckConstraint("max_attempts >= 1", name="job_max_attempts_check"),
        CheckConstraint("char_length(queue) BETWEEN 1 AND 200", name="job_queue_check"),
        CheckConstraint("char_length(task) BETWEEN 1 AND 200", name="job_task_check"),
        CheckConstraint("char_length(concurrency_key) BETWEEN 1 AND 201", name="job_concurrency_key_check"),
        CheckConstraint("units >= 1", name="job_units_check"),
        Index(
            "job_claim_idx",
            "queue",
            "priority",
            "run_at",
            "id",
            postgresql_where=text("status = 'queued' AND concurrency_key IS NULL"),
        ),
        Index("job_running_idx", "id", postgresql_where=text("status = 'running'")),
        Index("job_failed_idx", "id", postgresql_where=text("status = 'failed'")),
        Index("job_workflow_idx", "workflow_id", "id", postgresql_where=text("workflow_id IS NOT NULL")),
        Index(
            "job_blocked_idx",
            "blocked_by",
            postgresql_where=text("blocked_by IS NOT NULL AND status = 'blocked'"),
        ),
        Index("job_schedule_idx", "schedule_id", "finished_at", postgresql_where=text("schedule_id IS NOT NULL")),
        Index(
            "job_limit_idx",
            text("LEAST(expires_at, deadline_at)"),
            postgresql_where=text("LEAST(expires_at, deadline_at) IS NOT NULL AND status = 'queued'"),
        ),
        Index(
            "job_key_ready_idx",
            "queue",
            "concurrency_key",
            text("(- priority)"),
            "run_at",
            "id",
            postgresql_where=text(
                "concurrency_key IS NOT NULL AND status = 'queued' AND run_at <= GREATEST(created_at, ready_at)"
            ),
        ),
        Index(
            "job_key_later_idx",
            "queue",
            "run_at",
            "id",
            postgresql_where=text(
                "concurrency_key IS NOT NULL AND status = 'queued' AND run_at > GREATEST(created_at, ready_at)"
            ),
        ),
        Index(
            "job_key_begun_idx",
            "concurrency_key",
            text("(status <> 'queued')"),
            "id",
            postgresql_where=text(
                "concurrency_key IS NOT NULL AND (status = 'running' OR (status = 'queued' AND attempt > 0))"
            ),
        ),
        subject_index("job_subject_idx"),
        Index("job_purge_idx", "purge_at", postgresql_where=text("purge_at IS NOT NULL")),
    )


class Job(JobMixin, Base):
    """One job. Made by `enqueue()`, changed by statements; users read it."""


_OURS: Final = frozenset(column_names(JobMixin))


def is_job_class(given: object) -> bool:
    """Whether this is a mapped class of jobs."""
    return isinstance(given, type) and issubclass(given, JobMixin) and "__mapper__" in vars(given)


def companions_of(job: type[JobMixin]) -> Companions:
    """The mapped classes of the tables beside the jobs of this class: schedules, limits, progress and all others.

    Statements that take no `job=` take one of them: `pause_schedules(..., schedule=companions_of(Job).schedule)`.
    """
    return companions_in(schema_of(job))


def own_column(job: type[JobMixin], name: str) -> Column[Any]:
    """The column behind an attribute that a user's class has besides. Raises OptionError for any other."""
    found: MapperProperty[Any] | None = job.__mapper__.attrs.get(name)
    if isinstance(found, ColumnProperty) and name not in _OURS and isinstance(column := found.columns[0], Column):
        return column
    others = sorted(
        one.key for one in job.__mapper__.column_attrs if one.key not in {*_OURS, "progress", "progress_message"}
    )
    said = f"; it has {', '.join(others)}" if others else ": see JobMixin"
    raise OptionError(f"columns: {job.__name__} has no column {name!r} of your own{said}")


for _statement in (
    "ALTER TABLE %(fullname)s ALTER COLUMN status SET DEFAULT 'queued', ALTER COLUMN errors SET DEFAULT '[]'::jsonb",
    # `postgresql_with` on a Table is new in SQLAlchemy 2.1; this is the same on 2.0.
    (
        "ALTER TABLE %(fullname)s SET ("
        # Room for an update on the same page; renewals of a lease stay HOT.
        "fillfactor = 85, "
        # A queue's dead rows come from its traffic and not from its size: no scale factor.
        "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, "
        "autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000, "
        "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000)"
    ),
    # The claim and the completion leave an entry each beside the first one. Without room for them every page is split, and
    # searched for dead entries before: a sixth of what a job costs the server.
    "ALTER INDEX %(schema)s.job_pkey SET (fillfactor = 45)",
):
    event.listen(Job.__table__, "after_create", DDL(_statement))  # type: ignore[no-untyped-call]


@event.listens_for(JobMixin, "after_insert", propagate=True)
def _know_what_came_of_it(mapper: Mapper[JobMixin], connection: Connection, job: JobMixin) -> None:
    """After the INSERT the job is queued, or is a duplicate. A delay has become a time; both are counted from the transaction's now()."""
    known = vars(job)
    # As `set_committed_value` would, which looks for an older value.
    if known.get("_duplicate_of") is None:
        known["status"] = JobStatus.QUEUED
        known.setdefault("errors", [])
    else:
        known.update(_end_of_duplicate(job))
    for name in ("run_at", "expires_at", "deadline_at"):
        due = known.get(name)
        if isinstance(due, timedelta):
            set_committed_value(job, name, job.created_at + due)


def _end_of_duplicate(job: JobMixin) -> dict[str, Any]:
    """What the trigger `job_unique` has written. A role that only enqueues may not read it."""
    at, holder = job.created_at, "another job" if job.duplicate_of is None else f"job {job.duplicate_of}"
    error = {
        "at": at.isoformat(),
        "attempt": 0,
        "type": "Duplicate",
        "message": f"the unique key '{job.unique_key}' was held by {holder}",
        "traceback": "",
    }
    return {"status": JobStatus.CANCELLED, "finished_at": at, "purge_at": at + timedelta(days=1), "errors": [error]}


@event.listens_for(JobMixin, "after_update", propagate=True)
def _load_time(mapper: Mapper[JobMixin], connection: Connection, job: JobMixin) -> None:
    """Load the times after an UPDATE too, and at once: under AsyncSession a lazy load would fail."""
    of = mapper.class_
    for time in (of.run_at, of.expires_at, of.deadline_at):
        if isinstance(job.__dict__.get(time.key), timedelta):
            set_committed_value(job, time.key, connection.scalar(select(time).where(of.id == job.id)))


event.listen(JobMixin, "attribute_instrument", decode_on_read, propagate=True)
