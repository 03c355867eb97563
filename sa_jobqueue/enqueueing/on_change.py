"""`@on_change`: a task whose jobs are enqueued when a column of a mapped class changes.

>>> from sqlalchemy import Integer, Text
>>> from sqlalchemy.orm import DeclarativeBase, mapped_column
>>> from sa_jobqueue import on_change, task
>>> class Base(DeclarativeBase): ...
>>> class Order(Base):
...     __tablename__ = "orders"
...     id = mapped_column(Integer, primary_key=True)
...     status = mapped_column(Text)
>>> @on_change(Order.status, to="paid")
... @task(name="shop.send_receipt")
... def send_receipt(order: Order) -> None: ...

Rules with `via="session"` are applied at the end of each flush: then the session still has the history of the attributes, and already has the keys of new
rows. `change_triggers.py` makes the triggers of the other rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import EllipsisType
from typing import Any, ClassVar, Literal, TypeVar, get_args
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import ColumnProperty, InstanceState, Mapper, QueryableAttribute, Session, SessionTransaction
from sqlalchemy.orm.attributes import instance_state

from ..arguments.references import Reference, object_in
from ..arguments.storable import shown
from ..errors import TaskError
from ..models import JobMixin
from ..rules.job_fields import CHANGE_DEPTH
from ..sql.insert import insert_jobs
from ..tasks.calls import Call
from ..tasks.middleware import change_depth
from ..tasks.tasks import AnyTask, Task, origin_of
from .flushing import ChangeListener, Listeners

T = TypeVar("T", bound=AnyTask)
V = TypeVar("V")
Via = Literal["session", "trigger"]

#: The greatest depth of a chain of jobs in which each handler's change enqueues the next job.
MAX_DEPTH = 10
#: The setting of a transaction that tells triggers the depth of the running job.
DEPTH_SETTING = "sa_jobqueue.change_depth"


@dataclass(frozen=True, slots=True)
class Rule:
    """A declared `on_change`."""

    task: AnyTask
    cls: type[Any]
    key: str
    """The name of the attribute."""
    column: sa.Column[Any]
    to: Any
    """`...`: any value."""
    from_: Any
    insert: bool
    via: Via

    def matches(self, old: Any, new: Any) -> bool:
        """Whether the rule applies to this change. `old`: `...` if the old value is unknown."""
        same: Callable[[Any, Any], bool] = self.column.type.compare_values
        if old is not ... and (same(old, new) or (self.from_ is not ... and not same(old, self.from_))):
            return False
        return self.to is ... or same(new, self.to)

    def check(self) -> str:
        """The parameter that takes the row. Raises TaskError if the handler has no such parameter."""
        plan = self.task.parameters
        first = plan.positional[0] if plan.positional else None
        argument = None if first is None else object_in(plan.hint_of(first))
        if first is None or argument is None or not issubclass(self.cls, argument.cls):
            takes = "it takes no argument" if first is None else f"{first!r} cannot take it"
            raise TaskError(
                f"{self}: the first argument is an object of {self.cls.__name__}, and {takes}: annotate the handler's first parameter "
                f"with {self.cls.__name__}"
            )
        if others := sorted(plan.required - {first}):
            raise TaskError(f"{self}: its jobs have one argument, the row: give {', '.join(others)} a default")
        return first

    def __str__(self) -> str:
        return f"task {self.task.name!r}: on_change({self.cls.__name__}.{self.key})"


class _Declared:
    """The rules of this process. A declaration replaces the dictionaries, so a running flush in another thread keeps its dictionary."""

    rules: ClassVar[Mapping[tuple[str, ...], Rule]] = {}
    """All rules by their contents, so that a reloaded module replaces its rules."""
    by_mapper: ClassVar[WeakKeyDictionary[Mapper[Any], tuple[Rule, ...]]] = WeakKeyDictionary()
    """The rules that a flush applies."""


def on_change(
    attribute: QueryableAttribute[V],
    /,
    *,
    to: V | EllipsisType = ...,
    from_: V | EllipsisType = ...,
    insert: bool = True,
    via: Via = "session",
) -> Callable[[T], T]:
    """Enqueue a job of a task, with the row as its argument, when a column of the row changes: a decorator above `@task`. A task can have several.

    The job is written in the transaction of the change, with the task's options. The handler gets the row in its state at the time of the run.

    `attribute`: a mapped column, such as `Order.status`. Rows of mapped subclasses count, too.
    `to`, `from_`: the value after and before the change; by default any value. None is NULL. Setting the same value is not a
    change. An INSERT is a change from NULL; with `insert=False`, INSERTs do not count. For several values, write several rules.
    `via`: "session" for changes that the flush of a Session writes. "trigger" for all changes of the table, also by bulk UPDATE and plain SQL; a
    migration creates the triggers, see `on_change_sql`.

    A handler's changes may enqueue jobs, whose handlers may make further changes. After a chain of 10 such jobs, the next change fails with an error.

    Raises TaskError if `attribute` is not a mapped column, or the handler cannot take the row as its first and only argument. If the handler's
    annotations cannot be resolved yet, the first flush of such a row raises the error.
    """
    column = _column_of(attribute)
    if not isinstance(insert, bool):
        raise TaskError(f"on_change: insert must be True or False, not {shown(insert)}")
    if via not in get_args(Via):
        raise TaskError(f'on_change: via must be "session" or "trigger", not {shown(via)}')
    _check_value("to", to, attribute, column)
    _check_value("from_", from_, attribute, column)
    if to is not ... and from_ is not ... and column.type.compare_values(to, from_):
        raise TaskError(f"on_change: to and from_ are both {shown(to)}, which is no change")

    def decorate(task: T) -> T:
        if not isinstance(task, Task):
            raise TaskError(f"@on_change stands above @task, not on {shown(task)}")
        of: type[Any] = attribute.parent.class_
        rule = Rule(task, of, attribute.key, column, to, from_, insert, via)
        try:
            _ = task.parameters
        except TaskError:  # an annotation that cannot be resolved yet
            pass
        else:
            rule.check()
        where = (f"{of.__module__}.{of.__qualname__}", attribute.key, *origin_of(task.handler))
        _Declared.rules = {**_Declared.rules, (*where, task.name, repr(to), repr(from_)): rule}
        _Declared.by_mapper = WeakKeyDictionary()
        if via == "session":
            Listeners.on_change = _Changes
            Listeners.needed = True
            if not event.contains(of, "before_update", _read_old):
                event.listen(of, "before_update", _read_old, propagate=True)
        elif not event.contains(Session, "after_begin", _tell_depth):
            event.listen(Session, "after_begin", _tell_depth)
        return task

    return decorate


def _column_of(attribute: Any) -> sa.Column[Any]:
    is_mapped = isinstance(attribute, QueryableAttribute) and isinstance(attribute.parent, Mapper)
    found = attribute.property if is_mapped else None
    column = found.columns[0] if isinstance(found, ColumnProperty) else None
    if not isinstance(column, sa.Column):
        given = str(attribute) if is_mapped else shown(attribute)
        raise TaskError(f"on_change() takes the attribute of a mapped column, as Order.status, not {given}")
    return column


def _check_value(name: str, value: Any, attribute: object, column: sa.Column[Any]) -> None:
    """Raise TaskError if the column's type does not allow this value."""
    if value is ... or value is None or isinstance(column.type, (sa.TypeDecorator, sa.JSON)):
        return
    try:
        expected = column.type.python_type
    except NotImplementedError:
        return
    numbers, lists = (int, float, Decimal), (list, tuple)
    alike = next((kinds for kinds in (numbers, lists) if issubclass(expected, kinds)), expected)
    if not isinstance(value, alike):
        raise TaskError(
            f"on_change: {name}={shown(value)} is no value of {attribute} ({expected.__name__}): for several values write several rules, one "
            "above the other"
        )


def rules_of(task: AnyTask, via: Via) -> list[Rule]:
    """The rules of a task."""
    home, name = task.registry, task.name
    return [rule for rule in all_rules(via) if (rule.task.registry, rule.task.name) == (home, name)]


def all_rules(via: Via) -> list[Rule]:
    """All rules of this process, of all registries."""
    return [rule for rule in _Declared.rules.values() if rule.via == via]


def _rules_for(mapper: Mapper[Any]) -> tuple[Rule, ...]:
    """The rules for flushes of this class's rows. Raises TaskError for a handler that cannot take the row."""
    known = _Declared.by_mapper
    found = known.get(mapper)
    if found is None:
        rules = _Declared.rules.values()
        found = tuple(rule for rule in rules if rule.via == "session" and issubclass(mapper.class_, rule.cls))
        for rule in found:
            rule.check()
        known[mapper] = found
    return found


# ---- What a flush does.


class _Changes(ChangeListener):
    """Finds the changes of a flush. `context`: the flush's context, with the old values that were read before the flush."""

    @staticmethod
    def before_flush(session: Session, context: Any) -> None:
        """Let `_read_old` find the context."""
        session.info[_FLUSH] = context

    @staticmethod
    def after_flush(session: Session, context: Any) -> None:
        """Enqueue a job for each matching change. The session still has the history from before the flush."""
        session.info.pop(_FLUSH, None)
        calls: dict[type[JobMixin], list[Call]] = {}
        for state, (is_delete, is_listed) in list(context.states.items()):
            if not is_delete and not is_listed and (rules := _rules_for(state.mapper)):
                for rule in rules:
                    if _counts(rule, state, context):
                        calls.setdefault(rule.task.registry.job, []).append(
                            _call(rule, _argument(rule, state), _depth_in(session) + 1)
                        )
        for job, made in calls.items():
            connection = session.connection(bind_arguments={"mapper": sa.inspect(job)})
            for alike in _of_equal_columns(made):
                connection.execute(insert_jobs(alike, job=job))


#: The key of `Session.info` with the context of its flush.
_FLUSH = "sa_jobqueue.flush"


def _read_old(_mapper: object, _connection: object, instance: object) -> None:
    """Read the old values that the session has not loaded, before the UPDATE overwrites them. Listeners of the application may have set the new values
    in this flush.
    """
    state: InstanceState[Any] = instance_state(instance)
    session = state.session
    context = None if session is None else session.info.get(_FLUSH)
    if session is None or context is None:
        return
    for rule in _rules_for(state.mapper):
        history = state.attrs[rule.key].history
        place = (rule.cls, rule.key, state)
        if state.key is not None and history.added and not history.deleted and place not in context.attributes:
            context.attributes[place] = _stored(session, state, rule)


def _stored(session: Session, state: InstanceState[Any], rule: Rule) -> Any:
    """The value of a row in the database; `...` if there is no such row."""
    names = [state.mapper.get_property_by_column(column).key for column in state.mapper.primary_key]
    here = [getattr(rule.cls, name) == value for name, value in zip(names, state.identity or (), strict=True)]
    row = session.execute(sa.select(getattr(rule.cls, rule.key)).where(*here)).first()
    return ... if row is None else row[0]


def _counts(rule: Rule, state: InstanceState[Any], context: Any) -> bool:
    """Whether the flush has made a change that matches the rule."""
    if state.key is None:  # an INSERT
        return rule.insert and rule.matches(None, state.dict.get(rule.key))
    history = state.attrs[rule.key].history
    if not history.added:
        return False
    old = history.deleted[0] if history.deleted else context.attributes.get((rule.cls, rule.key, state), ...)
    return rule.matches(old, history.added[0])


def _argument(rule: Rule, state: InstanceState[Any]) -> object:
    """The object of the row; or the new key if the flush has changed the key, because the object still has the old key."""
    mapper = state.mapper
    names = [mapper.get_property_by_column(column).key for column in mapper.primary_key]
    if state.key is None or not any(state.attrs[name].history.deleted for name in names):
        return state.obj()
    of = object_in(rule.task.parameters.hint_of(rule.check()))
    assert of is not None
    version = of.version_of(state.obj()) if of.spec.fresh else None
    return Reference(of, tuple(mapper.primary_key_from_instance(state.obj())), version)


def _call(rule: Rule, instance: object, depth: int) -> Call:
    if depth > MAX_DEPTH:
        raise TaskError(
            f"{rule}: {MAX_DEPTH} jobs in a row were enqueued by changes, each by the handler of the job before: a handler's change "
            "enqueues its own task again; change the column only if necessary"
        )
    return rule.task.call(instance).with_meta(**{CHANGE_DEPTH: depth}).completed(flushed=True)


def _of_equal_columns(calls: Iterable[Call]) -> Iterable[list[Call]]:
    """The calls, grouped by the application's own columns that they fill."""
    found: dict[Any, list[Call]] = {}
    for call in calls:
        found.setdefault(frozenset(name for name, _ in call.columns or ()), []).append(call)
    return found.values()


# ---- The depth of the running job in a chain of jobs that changes enqueue.


def _depth_in(session: Session) -> int:
    """The depth of the job whose handler uses this session; 0 if a change did not enqueue it."""
    return session.info.get(CHANGE_DEPTH) or change_depth.get()


def _tell_depth(session: Session, transaction: SessionTransaction, connection: sa.Connection) -> None:
    """Tell the triggers the depth of the running job."""
    if (depth := _depth_in(session)) and not transaction.nested:
        connection.execute(sa.select(sa.func.set_config(DEPTH_SETTING, str(depth), True)))
