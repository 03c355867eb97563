"""What a flush does with new jobs: it inserts most of them past the unit of work, and those that wait for keys of objects at its end."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import Any, Protocol, cast

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import InstanceState, Mapper, Session, SessionTransaction, object_session
from sqlalchemy.orm.attributes import instance_state

from ..arguments.objects import PendingArguments, as_text
from ..arguments.references import Reference
from ..arguments.subjects import Subject
from ..errors import OptionError, PayloadError
from ..models import (
    UNFINISHED,
    JobMixin,
    JsonText,
    UnfinishedJson,
    listen_to_sessions,
    put_in_order,
)
from ..rules.job_fields import JOB_FIELDS
from ..sql.insert import flushed_insert
from ..sql.parts import complete_arguments, table_of
from ..util.sqlalchemy_internals import add_again, fail_flush, invalidate_pool, register_flushed, take_out
from .chains import chains_of, insert_chain


class Watching:
    """Receives each new job, where jobs that are added to no session are warned about."""

    made: Callable[[JobMixin], None] | None = None


def linked(session: Session, jobs: Sequence[JobMixin]) -> list[JobMixin]:
    """Those of `jobs` that this flush brings into a relationship with an object, on either side."""
    of_all = {id(job): job for job in jobs}
    found: set[int] = {id(job) for job in jobs if _added(job, of_jobs=False)}
    for instance in (*session.new, *session.dirty):
        found.update(id(target) for target in _added(instance, of_jobs=True) if id(target) in of_all)
    return [job for job in jobs if id(job) in found]


def _added(instance: object, *, of_jobs: bool) -> list[Any]:
    """What was put into the relationships of an object: all of them, or those that lead to jobs."""
    of: InstanceState[Any] = instance_state(instance)
    names = _relationships(of.mapper, of_jobs)
    return [target for name in names for target in cast(Any, of.attrs[name].history.added or ()) if target is not None]


@lru_cache(maxsize=512)
def _relationships(mapper: Mapper[Any], of_jobs: bool) -> tuple[str, ...]:
    """The names of those that a flush writes."""
    return tuple(
        relationship.key
        for relationship in mapper.relationships
        if not relationship.viewonly and (not of_jobs or issubclass(relationship.mapper.class_, JobMixin))
    )


# ---- A job whose arguments wait for the keys of objects, and what it was before it got them.

#: The attribute of a job with its pending arguments. It is not mapped.
_WAITING = "_waiting_for_keys"
#: The attributes that are completed.
_COMPLETED = ("args", "uniqueness", "subject_type", "subject_id")


def waiting_of(instance: object, waiting: PendingArguments | None = None) -> PendingArguments | None:
    """Get, or with `waiting` set, the pending arguments of a job; None if they are complete."""
    if waiting is not None:
        vars(instance)[_WAITING] = waiting
    return cast(PendingArguments | None, vars(instance).get(_WAITING))


def is_settled(job: JobMixin, session: Session, dirty: Collection[object]) -> bool:
    """Whether the keys and versions of all its objects are known, and this flush does not change them.

    `dirty`: the session's. Raises PayloadError if it does not give them either.
    """
    waiting = waiting_of(job)
    assert waiting is not None
    try:
        known = [_is_known(reference, session, dirty) for reference in waiting.references]
    except PayloadError as error:
        raise waiting.error(str(error)) from error
    return all(known)


def _is_known(reference: Reference, session: Session, dirty: Collection[object]) -> bool:
    instance = reference.object
    state: InstanceState[Any] = instance_state(instance)
    if state.key is not None:
        reference.now()  # it may be deleted by now
        return not (reference.of.spec.fresh and state.session is session and instance in dirty)
    if state.session is session:
        return False
    mend = (
        "add it, session.add(...), or flush it first"
        if state.session is None
        else "flush it there, and commit that session before this one"
    )
    place = "in no session" if state.session is None else "in another session than its job"
    raise reference.error(f"{reference} is not in the database yet, and it is {place}: {mend}")


@dataclass(frozen=True, slots=True)
class Pending:
    """The state of a job before its arguments were completed."""

    job: weakref.ref[JobMixin]
    waiting: PendingArguments
    before: dict[str, Any]
    aside: bool
    """Whether it was not part of the flush, so that the session's rollback does not know it as new."""
    transactions: tuple[weakref.ref[SessionTransaction], ...]
    """The transaction in which it was written, and those around it."""

    @classmethod
    def completed(cls, jobs: Sequence[JobMixin], session: Session, *, aside: bool = False) -> list[Pending]:
        """Complete the arguments of `jobs`. Raises PayloadError if a key is not known."""
        transactions = _transactions(session)
        return [cls._completed(job, aside, transactions) for job in jobs]

    @classmethod
    def _completed(
        cls, job: JobMixin, aside: bool, transactions: tuple[weakref.ref[SessionTransaction], ...]
    ) -> Pending:
        waiting = waiting_of(job)
        assert waiting is not None
        known = vars(job)
        attributes = _attributes(type(job))
        before = {name: value for name, value in known.items() if name in attributes}
        args = waiting.completed(known["args"])
        subject = waiting.subject()
        del known[_WAITING]
        known["args"] = JsonText(args)
        if waiting.rule is not None and known.get("uniqueness") is not None:
            known["uniqueness"] = JsonText(waiting.rule(args))
        if subject is not None:
            known["subject_type"], known["subject_id"] = subject
        return cls(weakref.ref(job), waiting, before, aside, transactions)

    @property
    def may_roll_back(self) -> bool:
        """Whether the outermost transaction goes on."""
        root = self.transactions[-1]() if self.transactions else None
        return root is not None and root.is_active

    def is_undone_by(self, rolled_back: SessionTransaction) -> bool:
        """Whether the rollback of this transaction has undone the INSERT."""
        return any(transaction() is rolled_back for transaction in self.transactions)

    def restore(self) -> None:
        """Restore that state of the job, which is transient again."""
        job = self.job()
        if job is None:
            return
        known = vars(job)
        if self.aside:
            for name in _attributes(type(job)) - self.before.keys():
                known.pop(name, None)
            known.update(self.before)
        for name in ("subject_type", "subject_id"):
            known.pop(name, None)
        known.update({name: self.before[name] for name in _COMPLETED if name in self.before})
        waiting_of(job, self.waiting)


@cache
def _attributes(job: type[JobMixin]) -> frozenset[str]:
    return frozenset(sa.inspect(job).column_attrs.keys())


def _transactions(session: Session) -> tuple[weakref.ref[SessionTransaction], ...]:
    found: list[weakref.ref[SessionTransaction]] = []
    transaction = session.get_nested_transaction() or session.get_transaction()
    while transaction is not None:
        found.append(weakref.ref(transaction))
        transaction = transaction.parent
    return tuple(found)


# ---- Jobs that are inserted past the unit of work.

#: The columns that `enqueue` sets for every job.
_ALWAYS = frozenset(field.column for field in JOB_FIELDS if not field.rare)
_TYPES: Mapping[str, tuple[type[Any], ...]] = {
    "text": (str,),
    "integer": (int,),
    "json": (JsonText,),
    "time": (timedelta, datetime),
}
#: The types of the values that are sent as they are, by column.
_PLAIN: Mapping[str, tuple[type[Any], ...]] = {
    "_sa_instance_state": (InstanceState,),
    **{field.column: (*_TYPES[field.kind], type(None)) if field.rare else _TYPES[field.kind] for field in JOB_FIELDS},
}

#: How many jobs are inserted at once, as by SQLAlchemy: all arguments together stay below the gigabyte that a statement can have.
_PAGE = 1_000


def _is_plain(job: JobMixin) -> bool:
    """Whether the job is as `enqueue` has made it: it has no other attributes, and none is an expression of SQL or has been read."""
    known = vars(job)
    return (
        known.keys() >= _ALWAYS
        and _WAITING not in known
        and all(type(value) in _PLAIN.get(name, ()) for name, value in known.items())
        and _is_ordinary(type(job))
    )


@cache
def _is_ordinary(job: type[JobMixin]) -> bool:
    """Whether an INSERT of the columns that `enqueue` sets is all that a flush does for a job of this class."""
    mapper: Mapper[JobMixin] = sa.inspect(job)
    table = table_of(job)
    return (
        len(mapper.tables) == 1
        and mapper.polymorphic_on is None
        and mapper.version_id_col is None
        and not table.foreign_keys
        and all(column.default is None or column.key == "run_at" for column in table.c)
    )


def _in_order(jobs: Sequence[JobMixin]) -> Sequence[JobMixin]:
    """The jobs in the order of a flush: as they were added, and unique jobs among themselves in the order of their keys."""
    return sorted(jobs, key=lambda job: instance_state(job).insert_order or 0)


def insert(session: Session, jobs: Sequence[JobMixin]) -> None:
    """Insert pending jobs of `session` as a flush would, which cannot begin in another flush: by a single statement for all that set the
    same columns. Listeners to the mapper's events hear of it.
    """
    for alike in _grouped(jobs, type):
        if _has_listeners(mapper := alike[0].__mapper__):
            connection = _connection(session, alike[0])
            for job in alike:
                mapper.dispatch.before_insert(mapper, connection, instance_state(job))
    for alike in _grouped(jobs, _shape):
        connection = _connection(session, alike[0])
        (_insert_plain if _is_plain(alike[0]) else _insert_any)(connection, alike)
    register_flushed(session, jobs)


def _has_listeners(mapper: Mapper[Any]) -> bool:
    """Whether another listener than `_before_insert` hears of the jobs before their INSERT."""
    return len(mapper.dispatch.before_insert) > 1


def _shape(job: JobMixin) -> Hashable:
    """What the jobs of a statement share. A job with an expression of SQL has a statement of its own."""
    if _is_plain(job):
        return type(job)
    columns = _columns(job)
    return type(job), frozenset(columns), id(job) if any(map(_is_expression, columns.values())) else None


def _is_expression(value: object) -> bool:
    return isinstance(value, sa.ClauseElement) or hasattr(value, "__clause_element__")


def _insert_plain(connection: sa.Connection, jobs: Sequence[JobMixin]) -> None:
    """Insert plain jobs of a class."""
    for first in range(0, len(jobs), _PAGE):
        page = jobs[first : first + _PAGE]
        known = [vars(job) for job in page]
        statement = flushed_insert(known, job=type(page[0]))
        try:
            rows = statement.rows(connection, known)
        except DBAPIError as error:
            if error.connection_invalidated:
                invalidate_pool(connection.engine)
            raise
        _inserted(connection, page, statement.made, rows)


def _insert_any(connection: sa.Connection, jobs: Sequence[JobMixin]) -> None:
    """Insert jobs of the same shape."""
    table = table_of(type(jobs[0]))
    rows = [_columns(job) for job in jobs]
    made = [column for column in table.c if _is_made(column, rows[0])]
    statement = sa.insert(table).returning(*made, sort_by_parameter_order=True)
    if any(map(_is_expression, rows[0].values())):
        found = connection.execute(statement.values(rows[0]))
    else:
        found = connection.execute(statement, rows)
    _inserted(connection, jobs, [column.key for column in made], found)


def _inserted(
    connection: sa.Connection, jobs: Sequence[JobMixin], made: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Set the attributes that the INSERT has returned."""
    mapper, names = jobs[0].__mapper__, _names(type(jobs[0]))
    attributes = [names[column] for column in made]
    for job, row in zip(jobs, rows, strict=True):
        vars(job).update(zip(attributes, row, strict=True))
        mapper.dispatch.after_insert(mapper, connection, instance_state(job))


def _is_made(column: sa.Column[Any], row: Mapping[str, Any]) -> bool:
    """Whether the database, or a default of the column, makes its value."""
    if column.key in row:
        return _is_expression(row[column.key])
    return column.server_default is not None or column.default is not None


def _columns(job: JobMixin) -> dict[str, Any]:
    """The values that are set, by column."""
    known = vars(job)
    return {key: known[name] for key, name in _names(type(job)).items() if name in known}


@cache
def _names(job: type[JobMixin]) -> dict[str, str]:
    """The attribute of each column."""
    mapper: Mapper[JobMixin] = sa.inspect(job)
    return {column.key: mapper.get_property_by_column(column).key for column in table_of(job).c}


def _grouped(jobs: Sequence[JobMixin], by: Callable[[JobMixin], Hashable]) -> list[list[JobMixin]]:
    found: dict[Hashable, list[JobMixin]] = {}
    for job in jobs:
        found.setdefault(by(job), []).append(job)
    return list(found.values())


def complete(session: Session, jobs: Sequence[JobMixin]) -> None:
    """Write the arguments, and the subjects, of jobs that were inserted without them."""
    for alike in _grouped(jobs, type):
        texts = [str.__str__(vars(job)["args"]) for job in alike]
        subjects = [_subject(job) for job in alike]
        statement = complete_arguments(
            ids=[job.id for job in alike], args=texts, subjects=subjects if any(subjects) else None, job=type(alike[0])
        )
        _connection(session, alike[0]).execute(statement)


def _subject(job: JobMixin) -> Subject | None:
    """The subject that is set: an attribute that is not set would be loaded."""
    of, key = (vars(job).get(name) for name in ("subject_type", "subject_id"))
    return None if of is None or key is None else Subject(of, key)


def _connection(session: Session, job: JobMixin) -> sa.Connection:
    return session.connection(bind_arguments={"mapper": job.__mapper__})


# ---- What happens before and after a flush, and after a rollback.

#: The keys of `Session.info`: the jobs that are set aside, and those that the flush writes and that are completed after it.
_ASIDE, _LINKED = "sa_jobqueue.aside", "sa_jobqueue.linked"
#: What was completed in transactions that may still be rolled back.
_DONE = "sa_jobqueue.completed"


class ChangeListener(Protocol):
    """Enqueues the jobs of changes that a flush writes: see `on_change`."""

    @staticmethod
    def before_flush(session: Session, context: Any) -> None: ...
    @staticmethod
    def after_flush(session: Session, context: Any) -> None: ...


class Listeners:
    """Whether this process has made a job or declared an `on_change` rule. Until then, the event handlers return at once."""

    needed = False
    on_change: type[ChangeListener] | None = None


def wait_for_keys(job: JobMixin, waiting: PendingArguments) -> None:
    """Let the flush that writes `job` complete its arguments."""
    waiting_of(job, waiting)
    vars(job)["args"] = UnfinishedJson(vars(job)["args"])


def _before_flush(session: Session, context: object, instances: object) -> None:
    """Set aside the jobs that must wait, and insert those that need not wait for anything."""
    if not Listeners.needed:
        return
    if Listeners.on_change is not None:
        Listeners.on_change.before_flush(session, context)
    new = session.new
    jobs = [instance for instance in new if isinstance(instance, JobMixin)]
    if not jobs and _ASIDE not in session.info:
        return
    if waiting := [*_aside(session), *(job for job in jobs if waiting_of(job) is not None)]:
        _set_aside(session, waiting)
    if chains := chains_of(session.new if waiting else new):
        _insert_chains(session, chains)
        new = session.new
        jobs = [instance for instance in new if isinstance(instance, JobMixin)]
    if (plain := [job for job in jobs if _is_plain(job)]) and instances is None and not _is_heard(session, plain):
        _insert_ahead(session, plain, alone=len(plain) == len(new) and not (session.dirty or session.deleted))


def _is_heard(session: Session, jobs: Sequence[JobMixin]) -> bool:
    """Whether the application takes part in the flushes of this session, so that the unit of work must insert all jobs."""
    of = session.dispatch
    return (
        [*of.before_flush][-1] is not _before_flush
        or [*of.after_flush] != [_after_flush]
        or bool(of.after_flush_postexec)
        or session.connection_callable is not None
        or any(
            _has_listeners(mapper) or mapper.class_manager.dispatch.refresh_flush
            for mapper in {job.__mapper__ for job in jobs}
        )
    )


def _insert_ahead(session: Session, jobs: Sequence[JobMixin], *, alone: bool) -> None:
    """Insert plain jobs before the flush begins, without the unit of work, which takes several times as long.

    `alone`: the flush writes nothing else.
    """
    if not alone:
        # A unique job locks its key, and that stays in its place among the rows that the unit of work locks.
        jobs = [job for job in jobs if vars(job).get("uniqueness") is None]
        referred_to = {id(job) for job in linked(session, jobs)}
        jobs = [job for job in jobs if id(job) not in referred_to]
    try:
        for alike in _grouped(_in_order(jobs), type):
            _insert_plain(_connection(session, alike[0]), alike)
        register_flushed(session, jobs)
    except BaseException:
        fail_flush(session)
        raise


def _insert_chains(session: Session, chains: Sequence[Sequence[JobMixin]]) -> None:
    """Insert jobs that wait for other new jobs, and their parents."""
    for job in (job for chain in chains for job in chain):
        if not _is_plain(job):
            raise OptionError(
                f"a job of {job.task!r} that waits for another, or is waited for, has attributes that enqueue() does not set: build a Workflow"
            )
    try:
        for chain in chains:
            insert_chain(_connection(session, chain[0]), chain, _inserted)
            register_flushed(session, chain)
    except BaseException:
        fail_flush(session)
        raise


def _set_aside(session: Session, jobs: Sequence[JobMixin]) -> None:
    """Set aside the jobs that must wait, and complete the others. Everything is checked before anything is changed."""
    dirty = session.dirty
    late = {id(job): job for job in jobs if not is_settled(job, session, dirty)}
    referred_to = linked(session, list(late.values())) if late else []
    _refuse_unknown_keys(referred_to)
    session.info.pop(_ASIDE, None)
    if settled := [job for job in jobs if id(job) not in late]:
        _remember(session, Pending.completed(settled, session))
        session.add_all(settled)
        put_in_order(session, JobMixin)  # some have got their unique keys just now
    for job in referred_to:
        del late[id(job)]
        vars(job)["args"] = JsonText(as_text(vars(job)["args"]))
        session.add(job)
    take_out(session, [job for job in late.values() if job in session])
    if late:
        session.info[_ASIDE] = _transaction(session), list(late.values())
    if referred_to:
        session.info[_LINKED] = referred_to


def _aside(session: Session) -> Sequence[JobMixin]:
    """The jobs that are still set aside, because another listener has refused the last flush: unless the session was closed then."""
    transaction, jobs = session.info.get(_ASIDE, (None, ()))
    if jobs and transaction != _transaction(session):
        del session.info[_ASIDE]
        return ()
    return cast(Sequence[JobMixin], jobs)


def _transaction(session: Session) -> weakref.ref[SessionTransaction] | None:
    """The outermost transaction. It begins with the first `add()`, and each `close()` ends it."""
    found = session.get_transaction()
    return None if found is None else weakref.ref(found)


def _refuse_unknown_keys(jobs: Sequence[JobMixin]) -> None:
    """A unique job's key is taken by the INSERT."""
    for job in jobs:
        waiting = waiting_of(job)
        if waiting is not None and waiting.decides_the_key(vars(job)["args"]):
            raise waiting.error(
                "the key of this unique job depends on an object that is not in the database yet, and that cannot be written "
                "before the job, because an object refers to the job, or a listener has added it: flush first (session.flush())"
            )


def _before_insert(_mapper: object, _connection: object, job: JobMixin) -> None:
    """Take in a job that another listener has added behind us: it is too late to set it aside."""
    if not Listeners.needed or waiting_of(job) is None or not isinstance(vars(job)["args"], UNFINISHED):
        return
    session = object_session(job)
    assert session is not None
    if is_settled(job, session, session.dirty):
        _remember(session, Pending.completed([job], session))
        return
    _refuse_unknown_keys([job])
    vars(job)["args"] = JsonText(as_text(vars(job)["args"]))
    session.info.setdefault(_LINKED, []).append(job)


def _after_flush(session: Session, context: object) -> None:
    """Write the jobs that were set aside, and complete those that were written too early."""
    if not Listeners.needed:
        return
    if Listeners.on_change is not None:
        Listeners.on_change.after_flush(session, context)
    _, aside = session.info.pop(_ASIDE, (None, ()))
    referred_to: Sequence[JobMixin] = session.info.pop(_LINKED, ())
    if aside:
        _remember(session, Pending.completed(aside, session, aside=True))
        add_again(session, aside)
        put_in_order(session, JobMixin)
        insert(session, _in_order(aside))
    if referred_to:
        _remember(session, Pending.completed(referred_to, session))
        complete(session, referred_to)


def _remember(session: Session, done: Sequence[Pending]) -> None:
    kept: list[Pending] = session.info.setdefault(_DONE, [])
    kept[:] = [pending for pending in kept if pending.may_roll_back]
    kept.extend(done)


def _after_rollback(session: Session, previous: SessionTransaction) -> None:
    """Restore the jobs whose INSERT was rolled back."""
    if not Listeners.needed:
        return
    session.info.pop(_ASIDE, None)
    for job in session.info.pop(_LINKED, ()):
        vars(job)["args"] = UnfinishedJson(as_text(vars(job)["args"]))
    kept: list[Pending] = session.info.get(_DONE, [])
    undone = [pending for pending in kept if pending.is_undone_by(previous)]
    kept[:] = [pending for pending in kept if not pending.is_undone_by(previous)]
    for pending in undone:
        pending.restore()


listen_to_sessions({"before_flush": _before_flush, "after_flush": _after_flush, "after_soft_rollback": _after_rollback})
event.listen(JobMixin, "before_insert", _before_insert, propagate=True)
