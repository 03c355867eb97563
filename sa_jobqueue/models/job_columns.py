"""The columns of a job table."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, MappedSQLExpression, Mapper, column_property, declared_attr, mapped_column

from ..rules.lifecycle import JobStatus
from ..util.schema import SCHEMA
from .base import AT_ONCE, DueTime, JsonObject, StatusText
from .companions import companions_in
from .job_readings import SubjectColumns
from .own_table import schema_of

# Omitted from the INSERT when unset; otherwise every row would carry a NULL for each of these columns.
_UNSAID_TIME, _UNSAID_TEXT = sa.DateTime(timezone=True).evaluates_none(), sa.Text().evaluates_none()
_UNSAID_NUMBER = sa.BigInteger().evaluates_none()
_UNSAID_STATUS = StatusText().evaluates_none()
_OBJECT = JsonObject().evaluates_none()
_LIMIT = DueTime(SCHEMA).evaluates_none()


def _reported(job: Any, what: str, *, name: str) -> MappedSQLExpression[Any]:
    """The handler's report since the last claim. Deferred: it is in a table of its own, and rarely read."""
    progress = companions_in(schema_of(job)).progress
    found = sa.select(getattr(progress, what)).where(progress.job_id == job.id, progress.claim_token == job.claim_token)
    return column_property(found.correlate_except(progress).scalar_subquery().label(name), deferred=True)


if TYPE_CHECKING:
    from sqlalchemy.orm.decl_api import DeclarativeAttributeIntercept

    # As a DeclarativeBase has it: a type checker takes `type[JobMixin]` for hashable then.
    class _MappedBelow(metaclass=DeclarativeAttributeIntercept): ...

else:
    _MappedBelow = object


class JobColumns(SubjectColumns, _MappedBelow):
    """The columns of all job tables, and attributes that are read from companion tables."""

    if TYPE_CHECKING:
        __table__: ClassVar[sa.FromClause]
        __mapper__: ClassVar[Mapper[Any]]

    id: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity(always=False), primary_key=True)
    # These three come first, so that a merge is refused before it has copied a value.
    # The model does not say the table's defaults of `status` and `errors`. An INSERT would return them, and a role that only
    # enqueues would need the right to read them of all jobs: see `AFTER_CREATE`.
    status: Mapped[JobStatus] = mapped_column(_UNSAID_STATUS)
    claims: Mapped[int] = mapped_column(sa.Integer, server_default=sa.text("0"))
    """How often it was claimed."""
    claim_token: Mapped[int | None] = mapped_column(_UNSAID_NUMBER)
    """The fence: a random number that each claim stores, and that each write after it asks for."""
    run_at: Mapped[datetime] = mapped_column(DueTime(SCHEMA), server_default=sa.func.now(), default=AT_ONCE)
    """When it is due. A retry or a snooze moves it."""
    created_at: Mapped[datetime] = mapped_column(sa.DateTime(timezone=True), server_default=sa.func.now())
    claimed_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    lease_expires_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    finished_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    purge_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    """When the row may be deleted; None: never."""
    cancel_requested_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    priority: Mapped[int] = mapped_column(sa.SmallInteger, server_default=sa.text("4"))
    """0 to 9, higher first."""
    attempt: Mapped[int] = mapped_column(sa.SmallInteger, server_default=sa.text("0"))
    max_attempts: Mapped[int] = mapped_column(sa.SmallInteger, server_default=sa.text("10"))
    rescues: Mapped[int] = mapped_column(sa.SmallInteger, server_default=sa.text("0"))
    """How often its worker died, or left while the job ran."""
    queue: Mapped[str] = mapped_column(sa.Text, server_default=sa.text("'default'"))
    task: Mapped[str] = mapped_column(sa.Text)
    args: Mapped[dict[str, Any]] = mapped_column(_OBJECT, server_default=sa.text("'{}'::jsonb"))
    meta: Mapped[dict[str, Any]] = mapped_column(_OBJECT, server_default=sa.text("'{}'::jsonb"))
    """Tags, trace context: what the producer sends along."""
    worker: Mapped[str | None] = mapped_column(_UNSAID_TEXT)
    """The worker process that holds it, or held it last."""
    errors: Mapped[list[dict[str, Any]]] = mapped_column(JSONB)
    """An entry per failed attempt or rescue: at, attempt, type, message, traceback."""
    result: Mapped[Any | None] = mapped_column(JSONB)
    """What the handler returned, as plain JSON, if its task says `record=True`."""
    uniqueness: Mapped[dict[str, Any] | None] = mapped_column(JsonObject(none_as_null=True).evaluates_none())
    """The key of a unique job, and until when it has it: see `Unique`."""
    expires_at: Mapped[datetime | None] = mapped_column(_LIMIT)
    """If no attempt was begun by then, the job is cancelled."""
    deadline_at: Mapped[datetime | None] = mapped_column(_LIMIT)
    """After that time no attempt begins or goes on."""
    # The trigger's to say: the INSERT returns it. 0: of a job that could not be seen.
    _duplicate_of: Mapped[int | None] = mapped_column("duplicate_of", _UNSAID_NUMBER, server_default=sa.FetchedValue())

    schedule_id: Mapped[int | None] = mapped_column(_UNSAID_NUMBER)
    """The schedule that made it."""
    tick_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    """The tick of the schedule for which it was made: the last tick, if it stands for several."""
    ticks: Mapped[int | None] = mapped_column(sa.Integer().evaluates_none())
    """For how many times of the schedule it stands."""
    concurrency_key: Mapped[str | None] = mapped_column(sa.Text(collation="C").evaluates_none())
    """By what it is ordered, limited and served in turn: its `key`, or a name that a claim gives to the jobs of a limited task."""
    units: Mapped[int | None] = mapped_column(sa.SmallInteger().evaluates_none())
    """How much of a rate it takes; None: 1."""
    workflow_id: Mapped[int | None] = mapped_column(_UNSAID_NUMBER)
    """The workflow that it is a member of."""
    blocked_by: Mapped[int | None] = mapped_column(_UNSAID_NUMBER)
    """While it is blocked: a job that it waits for; 0: for some of several; or minus its workflow's id, until that is found."""
    inputs: Mapped[int | None] = mapped_column(sa.SmallInteger().evaluates_none())
    """How many of its first parameters are results of other jobs; 0: the first is a list of all results. None: no parameter is."""
    extras: Mapped[dict[str, Any] | None] = mapped_column(JsonObject(none_as_null=True).evaluates_none())
    """Rare attributes of the job. `version`: the version of its arguments, see `task`; 1 by default. `on_failure` and `on_success`: its
    follow-ups."""
    ready_at: Mapped[datetime | None] = mapped_column(_UNSAID_TIME)
    """The due time at which a claim has let it take its turn among the jobs with keys; None: it was due when it was enqueued."""

    @declared_attr
    def progress(cls) -> Mapped[float | None]:  # noqa: N805
        """The progress that the handler reported, 0 to 1; None if it has reported nothing since the last claim.
        `select(Job.id, Job.progress)` reads it in any session; of a loaded job it is read when it is asked for, or with `undefer(Job.progress)`.
        """
        return _reported(cls, "fraction", name="progress")

    @declared_attr
    def progress_message(cls) -> Mapped[str | None]:  # noqa: N805
        """The message that the handler reported with it, or None. It is read as `progress` is."""
        return _reported(cls, "message", name="progress_message")
