"""What an operator does to limits. Each is one statement, so it joins the caller's transaction:

>>> from sa_jobqueue import Rate
>>> statement = set_limit("sync", running=50, rate=Rate(500, burst=50))
>>> statement = set_limit("sync", key="42", running=3, weight=5)
>>> statement = pause("sync", key="42", reason="the provider is down")

`name` is that of a queue; with `owner="task"` that of a task, for which a `Task` may be given. With `key` a statement is about the
jobs of that key alone. Workers that listen are told at the commit. Objects that are already loaded keep what they show until they
are refreshed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, get_args

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert

from ...errors import OptionError
from ...models import (
    Job,
    JobMixin,
    KeyRow,
    LimitRow,
    LimitState,
    companions_of,
    in_schema,
    schema_function,
    status_literal,
)
from ...rules.failures import clean
from ...rules.lifecycle import JobStatus
from ...rules.limits import (
    NO_SHARE,
    KeyLimits,
    Limits,
    Owner,
    Rate,
    Share,
    WhenFull,
    checked_of,
    checked_rest,
    checked_weight,
)
from ...rules.retry import Duration
from ...tasks.options import Enqueueable, checked_key, checked_name
from ..admin import UNSYNCHRONIZED
from ..parts import ONE, columns_of, materialized, table_of
from ..readings.depths import CAP
from .state import is_keyless, is_later, is_ready


class Unchanged(Enum):
    """The type of `UNCHANGED`."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return self.name


UNCHANGED: Final = Unchanged.UNCHANGED
"""What is not given, and stays as it is. None takes a limit away."""


def set_limit(
    name: str | Enqueueable,
    /,
    *,
    key: str | None = None,
    of: str | None = None,
    owner: Owner = "queue",
    running: int | Unchanged | None = UNCHANGED,
    rate: Rate | Unchanged | None = UNCHANGED,
    rates: Sequence[Rate] | Unchanged | None = UNCHANGED,
    per_key: KeyLimits | Unchanged | None = UNCHANGED,
    strict: bool | Unchanged = UNCHANGED,
    when_full: WhenFull | Unchanged = UNCHANGED,
    max_waiting: int | Unchanged | None = UNCHANGED,
    share: Share | Unchanged = UNCHANGED,
    per: Mapping[str, KeyLimits] | Unchanged | None = UNCHANGED,
    weight: int | Unchanged = UNCHANGED,
    limit: type[LimitRow] = LimitRow,
    limit_key: type[KeyRow] = KeyRow,
) -> sa.Executable:
    """Change limits: those that are given, as in `Limits`; the others stay. None takes a limit away. Returns the name.

    A missing row is created. From now on the limits are held: the limits that code declares do not replace them until
    `remove_limit`. `per_key` changes all of a key's limits. `rate` changes the rate without a unit; `rates` replaces all rates.

    With `key`: `running`, `rate` and `rates` hold for that key in place of `per_key`, and None means that `per_key` holds. `weight`, 1 to
    1,000: how many jobs the key gets in its turn, 1 by default.

    `of`: the name of another key, whose value is `key`: `set_limit("llm", key="openai", of="provider", running=3)` holds for that value in place
    of `Limits(per=...)`.

    Raises OptionError for a value that cannot be used.
    """
    values: dict[str, Any] = {
        "running": running, "rate": rate, "rates": rates, "per_key": per_key, "strict": strict, "when_full": when_full, "max_waiting": max_waiting,
        "share": share, "per": per,
    }  # fmt: skip
    given = {name: value for name, value in values.items() if value is not UNCHANGED}
    if isinstance(rate, Rate) and rate.unit:
        raise OptionError(
            f"set_limit: rate is the rate without a unit: write rates=[{rate}], with all rates that are to hold"
        )
    prefixes = tuple({"rate": "rate_", "rates": "rate", "per_key": "key_"}.get(name, name) for name in given)
    columns = {name: value for name, value in Limits(**given).columns().items() if name.startswith(prefixes)}
    if weight is not UNCHANGED:
        columns["weight"] = checked_weight(weight)
        if key is None:
            raise OptionError('set_limit: a weight is that of a key: give key="..." with it')
    if key is not None and (of_owner := given.keys() - {"running", "rate", "rates"}):
        refused = next(
            name for name in ("per_key", "strict", "when_full", "max_waiting", "share", "per") if name in of_owner
        )
        raise OptionError(f"set_limit: {refused} is for all keys of the {owner}, and not for one key")
    return change_limits(name, columns, key=key, of=of, owner=owner, limit=limit, limit_key=limit_key)


def change_limits(
    name: str | Enqueueable,
    columns: Mapping[str, Any],
    *,
    key: str | None = None,
    of: str | None = None,
    owner: Owner = "queue",
    limit: type[LimitRow] = LimitRow,
    limit_key: type[KeyRow] = KeyRow,
) -> sa.Executable:
    """`set_limit` by the columns of the row, which have been checked. Raises OptionError if there are none."""
    if not columns:
        raise OptionError('set_limit: say what changes, as in set_limit("sync", running=50)')
    row = _row(name, key, owner, of)
    if of is not None and "weight" in columns:
        raise OptionError(f"set_limit: a weight is that of the key by which jobs take turns, and {of} only limits")
    if columns.get("share") == "time" and row["owner"] == "task":
        raise OptionError(f"set_limit: {NO_SHARE}")
    changes = dict(columns) if key is not None else {**columns, "held": sa.true()}
    return _upsert(limit if key is None else limit_key, row, changes, changes)


def remove_limit(
    name: str | Enqueueable,
    /,
    *,
    key: str | None = None,
    of: str | None = None,
    owner: Owner = "queue",
    limit: type[LimitRow] = LimitRow,
    limit_key: type[KeyRow] = KeyRow,
) -> sa.Executable:
    """Take back what `set_limit` has changed, and end a wait, as `resume` does. Returns the name; nothing if there was neither.

    What code declares holds again; where it declares nothing, there is no limit any more. A pause stays.
    """
    row = _row(name, key, owner, of)
    table = table_of(limit if key is None else limit_key)
    columns = table.c
    changed: sa.ColumnElement[bool]
    values: dict[str, Any]
    if key is None:
        changed = columns.held
        gone = sa.and_(columns.declared.is_(None), columns.paused_at.is_(None), columns.broken_until.is_(None))
        values = {name: _declared(columns, name, none) for name, none in Limits().columns().items()}
        values["held"] = sa.false()
    else:
        changed, gone = sa.true(), sa.and_(columns.paused_at.is_(None), columns.broken_until.is_(None))
        values = {**KeyLimits().columns(""), "weight": ONE}
    return _delete_or_update(limit if key is None else limit_key, row, changed, gone, values)


def pause(
    name: str | Enqueueable,
    /,
    *,
    key: str | None = None,
    owner: Owner = "queue",
    reason: str | None = None,
    limit: type[LimitRow] = LimitRow,
    limit_key: type[KeyRow] = KeyRow,
) -> sa.Executable:
    """Start nothing more of a queue, a task, or one key of it, until `resume`, also through deployments. Returns the name.

    What runs goes on, and jobs can be enqueued. A pause that is there already keeps its beginning, and takes this reason.
    """
    if reason is not None and not isinstance(reason, str):
        raise OptionError(f"pause: the reason must be a text, not {reason!r}")
    mapped: type[LimitRow | KeyRow] = limit if key is None else limit_key
    why = {"pause_reason": None if reason is None else clean(reason)}
    since = sa.func.coalesce(table_of(mapped).c.paused_at, sa.func.now())
    return _upsert(mapped, _row(name, key, owner), {"paused_at": sa.func.now(), **why}, {"paused_at": since, **why})


def resume(
    name: str | Enqueueable,
    /,
    *,
    key: str | None = None,
    owner: Owner = "queue",
    limit: type[LimitRow] = LimitRow,
    limit_key: type[KeyRow] = KeyRow,
) -> sa.Executable:
    """End a pause, and a wait that a handler has asked for by `RateLimited`. Returns the name; nothing if there was neither.

    A pause or a wait of the whole queue or task does not end with that of a key.
    """
    mapped: type[LimitRow | KeyRow] = limit if key is None else limit_key
    columns = table_of(mapped).c
    if key is None:
        gone = sa.and_(sa.not_(columns.held), columns.declared.is_(None), _is_plain(columns, Limits().columns()))
    else:
        gone = _is_plain(columns, {**KeyLimits().columns(""), "weight": 1})
    gone = sa.and_(gone, columns.broken_until.is_(None))
    values = {"paused_at": sa.null(), "pause_reason": sa.null()}
    return _delete_or_update(mapped, _row(name, key, owner), columns.paused_at.is_not(None), gone, values)


def open_breaker(
    name: str | Enqueueable,
    /,
    *,
    key: str | None = None,
    rest: Duration = 120.0,
    who: str | None = None,
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """Open the breaker of a task, or of one of its keys, for `rest`: no job starts, then one job probes. Returns true.

    `rest`: seconds or a timedelta, from 1 second to a day. `who`: the name in the audit; None: the role of the database; "": the
    caller writes the audit by `record_action`. Raises OptionError for
    a value that cannot be used.
    """
    return _set_breaker(name, key, checked_rest(rest, "open_breaker: rest"), who, job)


def close_breaker(
    name: str | Enqueueable, /, *, key: str | None = None, who: str | None = None, job: type[JobMixin] = Job
) -> sa.Executable:
    """Close the breaker of a task, or of one of its keys: jobs start again. Returns whether the breaker was open. `who`: as in `open_breaker`."""
    return _set_breaker(name, key, None, who, job)


def _set_breaker(
    name: str | Enqueueable, key: str | None, seconds: float | None, who: str | None, job: type[JobMixin]
) -> sa.Executable:
    row = {"key": None, **_row(name, key, "task")}
    given = [sa.bindparam(f"of_{part}", row[part], sa.Text) for part in ("name", "key")]
    call = schema_function(
        "set_breaker",
        table_of(job).schema,
        *given,
        sa.bindparam("rest", seconds, sa.Float(53)),
        sa.func.coalesce(sa.bindparam("who", who, sa.Text), sa.literal_column("session_user::text")),
        of=sa.Boolean(),
    )
    return sa.select(call.label("changed"))


def _row(name: str | Enqueueable, key: str | None, owner: str, of: str | None = None) -> dict[str, str]:
    """The primary key of a row. `of`: the name of another key; `key` is then its value."""
    if isinstance(name, Enqueueable):
        owner, name = "task", name.name
    if owner not in get_args(Owner):
        raise OptionError(f"the owner of a limit must be one of {', '.join(get_args(Owner))}, not {owner!r}")
    row = {"owner": owner, "name": checked_name(name, f"the {owner}'s name", OptionError)}
    if of is not None:
        if key is None:
            raise OptionError(
                f'of={of!r} is the name of another key: give its value with it, as key="openai", of="provider"'
            )
        row["owner"] = f"{owner}:{checked_of(of)}"
    return row if key is None else {**row, "key": checked_key(key)}


def _upsert(
    mapped: type[LimitRow | KeyRow], row: Mapping[str, str], values: Mapping[str, Any], changes: Mapping[str, Any]
) -> sa.Executable:
    """Insert the row with `values`; or make `changes` where it is there."""
    made = insert(mapped).values(**row, **values)
    return (
        made.on_conflict_do_update(
            index_elements=list(row),
            set_={name: made.excluded[name] if value is values[name] else value for name, value in changes.items()},
        )
        .returning(table_of(mapped).c.name)
        .execution_options(**UNSYNCHRONIZED)
    )


def _delete_or_update(
    mapped: type[LimitRow | KeyRow],
    row: Mapping[str, str],
    where: sa.ColumnElement[bool],
    gone: sa.ColumnElement[bool],
    values: Mapping[str, Any],
) -> sa.Executable:
    """Delete the row if it has no content left, which is tested under its lock; else change it. End a wait of the key or queue, too."""
    table = table_of(mapped)
    this = [table.c[name] == sa.bindparam(f"of_{name}", value, sa.Text) for name, value in row.items()]
    mine: sa.CTE = materialized(sa.select(gone.label("gone")).where(*this, where).with_for_update(), "mine")
    deleted = sa.delete(table).where(*this, sa.select(mine.c.gone).where(mine.c.gone).exists()).returning(table.c.name)
    changed = (
        sa.update(table)
        .where(*this, sa.select(mine.c.gone).where(sa.not_(mine.c.gone)).exists())
        .values(**values)
        .returning(table.c.name)
    )
    state = table_of(in_schema(LimitState, str(table.schema)))
    its_state = [
        state.c[name] == sa.bindparam(f"of_{name}", value, sa.Text) for name, value in {"key": "", **row}.items()
    ]
    lifted = (
        sa.update(state)
        .where(*its_state, state.c.blocked_until > sa.func.now())
        .values(blocked_until=sa.func.now())
        .returning(state.c.name)
    )
    done = [
        statement.cte(name).c.name
        for statement, name in ((deleted, "deleted"), (changed, "changed"), (lifted, "lifted"))
    ]
    # There may be no row, but a state alone. A session that is bound by class finds its engine by the column of the class.
    single = sa.select(ONE).subquery("one")
    return (
        sa.select(sa.func.coalesce(mapped.name, sa.bindparam("of_name", row["name"], sa.Text)).label("name"))
        .select_from(single.outerjoin(table, sa.and_(*this)))
        .where(sa.or_(*(sa.select(name).exists() for name in done)))
    )


def _declared(columns: Any, name: str, none: object) -> sa.ColumnElement[Any]:
    """The value that code has declared for a column, or else `none`, for no limit."""
    text = columns.declared.op("->>", return_type=sa.Text())(sa.literal_column(f"'{name}'"))
    value: sa.ColumnElement[Any] = sa.cast(text, columns[name].type)
    return value if none is None else sa.func.coalesce(value, _literal(none))


def _is_plain(columns: Any, plain: Mapping[str, object]) -> sa.ColumnElement[bool]:
    """Whether a row has only these values, which limit nothing."""
    return sa.and_(
        *(
            columns[name].is_(None) if value is None else columns[name] == _literal(value)
            for name, value in plain.items()
        )
    )


def _literal(value: object) -> Any:
    if isinstance(value, bool):
        return sa.true() if value else sa.false()
    return sa.literal_column(str(value) if isinstance(value, int) else f"'{value}'")


# ---- The limits, with the numbers of jobs that run and wait now.

#: The columns of limits, and other columns that are shown with them.
_LIMITS = ("running", "rate_count", "rate_seconds", "rate_burst", "rates")
_OF_OWNERS = (
    "key_running", "key_rate_count", "key_rate_seconds", "key_rate_burst", "key_rates", "strict", "when_full", "max_waiting", "share", "per", "held", "declared",
)  # fmt: skip
_PAUSE = ("paused_at", "pause_reason", "broken_until")


def list_limits(*, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """A row per queue and task that has limits, is paused or has a breaker that is not closed, and behind each a row per key that has its own.

    The columns are those of `LimitRow` and `KeyRow`; `key` is NULL in the rows of queues and tasks. In addition: `of`, the name of a key that only
    limits and has the value `key`, else NULL; `runs` and `waits`, how many of its jobs run and are queued now, each counted up to 10,001;
    `blocked_until`, the time until which a handler keeps them waiting; and `now`.
    """
    tables = companions_of(job)
    owners, keys, state = table_of(tables.limit), table_of(tables.key), table_of(tables.limit_state)
    of_owners = sa.select(
        owners.c.owner,
        owners.c.name,
        sa.cast(sa.null(), sa.Text).label("key"),
        sa.cast(sa.null(), sa.Text).label("of"),
        *(owners.c[name] for name in (*_LIMITS, *_OF_OWNERS, *_PAUSE)),
        sa.cast(sa.null(), sa.Integer).label("weight"),
        *_numbers(owners, job),
    )
    owner, of = (
        sa.func.split_part(keys.c.owner, sa.literal_column("':'"), part, type_=sa.Text())
        for part in (ONE, sa.literal_column("2"))
    )
    others = (
        sa.select(owner.label("owner"), of.label("of"), *(column for column in keys.c if column.key != "owner"))
        .where(of != sa.literal_column("''"))
        .subquery("others")
    )
    values = table_of(job).c.extras.op("->", return_type=JSONB())(sa.literal_column("'keys'", sa.Text))

    def of_keys(its: Any, of: sa.ColumnElement[Any], of_key: sa.ColumnElement[bool]) -> Any:
        return sa.select(
            *columns_of(its.c, "owner name key"),
            of.label("of"),
            *(its.c[name] for name in _LIMITS),
            *(sa.cast(sa.null(), owners.c[name].type).label(name) for name in _OF_OWNERS),
            *(its.c[name] for name in _PAUSE),
            its.c.weight,
            *_numbers(its, job, of_key),
        )

    found = sa.union_all(
        of_owners,
        of_keys(keys, sa.cast(sa.null(), sa.Text), table_of(job).c.concurrency_key == keys.c.key).where(
            of == sa.literal_column("''")
        ),
        of_keys(others, others.c.of, values.op("->>", return_type=sa.Text())(others.c.of) == others.c.key),
    ).subquery("found")
    key = sa.func.coalesce(found.c.key, sa.literal_column("''"))
    its_own = sa.and_(
        state.c.owner == found.c.owner, state.c.name == found.c.name, state.c.key == key, found.c.of.is_(None)
    )
    return (
        sa.select(
            *found.c, tables.limit_state.blocked_until, sa.func.now().label("now")
        )  # of the class, by which a session may be bound
        .select_from(found.outerjoin(state, its_own))
        .order_by(found.c.owner, found.c.name, found.c.of.nulls_first(), found.c.key.nulls_first())
    )


def _numbers(of: Any, job: type[JobMixin], *of_key: sa.ColumnElement[bool]) -> list[sa.ColumnElement[int]]:
    """How many jobs of each row of `of` run, and how many wait. Those that wait are in three indexes: of jobs without a key, of those
    with one that are ready, and of the others.
    """
    columns = table_of(job).c
    running = [columns.status == status_literal(JobStatus.RUNNING)]
    ready, later = [is_ready(table_of(job))], [is_later(table_of(job))]
    keyless = [is_keyless(table_of(job))]
    waiting = [ready, later] if of_key else [keyless, ready, later]

    def number(its: sa.ColumnElement[bool], parts: Sequence[Sequence[sa.ColumnElement[bool]]]) -> sa.ColumnElement[int]:
        pages = [
            sa.select(columns.id).where(*part, its, *of_key).limit(sa.literal_column(str(CAP))).correlate(of)
            for part in parts
        ]
        counts = [sa.select(sa.func.count()).select_from(page.subquery()).scalar_subquery() for page in pages]
        return sa.func.least(sum(counts[1:], start=counts[0]), sa.literal_column(str(CAP)))

    def by_owner(parts: Sequence[Sequence[sa.ColumnElement[bool]]]) -> sa.ColumnElement[int]:
        of_task = number(columns.task == of.c.name, parts)
        return sa.case(
            (of.c.owner == sa.literal_column("'queue'"), number(columns.queue == of.c.name, parts)), else_=of_task
        )

    return [by_owner([running]).label("runs"), by_owner(waiting).label("waits")]
