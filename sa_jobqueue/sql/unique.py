"""Unique keys: given back when a job has ended or has started, and taken again for a job that an operator brings back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa

from ..arguments.context import ClaimedJob
from ..models import Job, JobMixin, companions_of, schema_function, status_in
from ..rules.lifecycle import FINISHED, extra
from .ends import is_held
from .parts import ZERO, array, in_seconds, lock_in_order, materialized, members, packed, packed_texts, table_of
from .tables import Compiled, StorePart


def key_of(table: sa.FromClause) -> sa.ColumnElement[Any]:
    """The unique key of a job, as text; NULL if it has none."""
    return _text(table.c.uniqueness, "key")


def _text(rule: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[Any]:
    return rule.op("->>", return_type=sa.Text())(sa.literal_column(f"'{name}'"))


def started_key(table: sa.FromClause) -> sa.ColumnElement[Any]:
    """The key that a job gives back when it is started; NULL if it has none, or keeps it."""
    return sa.case((_text(table.c.uniqueness, "scope") == sa.literal_column("'queued'"), key_of(table)))


def given_back(jobs: Sequence[sa.FromClause], job: type[JobMixin]) -> list[sa.CTE]:
    """CTEs that give the keys of these jobs back, for the statement that ends the jobs.

    `jobs` have the columns `id` and `key`, which is NULL where there is nothing to give back. A key that is kept for some time
    after its job's end gets its expiry; a key that another transaction has locked is left, and maintenance will find it.
    """
    key = table_of(companions_of(job).unique_key)
    ids = [sa.select(source.c.id).where(source.c.key.is_not(None)) for source in jobs]
    texts = [sa.select(source.c.key).where(source.c.key.is_not(None)) for source in jobs]
    mine = materialized(
        sa.select(key.c.key)
        .where(
            members(key.c.key, texts[0].union_all(*texts[1:]) if len(texts) > 1 else texts[0]),
            members(key.c.job_id, ids[0].union_all(*ids[1:]) if len(ids) > 1 else ids[0]),
            key.c.expires_at.is_(None),
        )
        .order_by(key.c.key)
        .with_for_update(skip_locked=True),
        "given_back",
    )
    ours = members(key.c.key, sa.select(mine.c.key))
    until = in_seconds(key.c.keep, after=sa.func.statement_timestamp())
    return [
        sa.delete(key).where(ours, key.c.keep.is_(None)).cte("freed_keys"),
        sa.update(key).where(ours, key.c.keep.is_not(None)).values(expires_at=until).cte("kept_keys"),
    ]


def started_parameters(started: Mapping[int, str]) -> dict[str, Any]:
    """The parameters of `free_started_keys`, by name."""
    return {"started_ids": packed(started), "started_keys": packed_texts(started.values())}


def free_started_keys(started: Mapping[int, str], *, job: type[JobMixin] = Job) -> sa.Executable:
    """Free the keys of jobs that have been started, given by their ids, except those that another transaction has locked.

    Returns the ids of the jobs whose keys it freed. To be executed in a transaction of its own: its commit does not wait for the
    disk, because a key that a crash brings back is that of a job that runs, and is free as such.
    """
    key = table_of(companions_of(job).unique_key)
    given = started_parameters(started)
    # In the statement, which is nearly always its own transaction. Waiting for the disk would take a worker of such jobs half of its time.
    at_leisure = sa.select(
        sa.func.set_config(
            sa.literal_column("'synchronous_commit'"),
            sa.literal_column("'off'"),
            sa.literal_column("true"),
            type_=sa.Text(),
        )
    ).scalar_subquery()
    # By a subquery, which is executed once. In the condition itself the array's text would be read for each row.
    ids = sa.cast(
        sa.select(array("started_ids", given["started_ids"], sa.BigInteger())).scalar_subquery(),
        sa.ARRAY(sa.BigInteger),
    )
    mine = materialized(
        sa.select(key.c.key)
        .where(
            key.c.key == sa.func.any(array("started_keys", given["started_keys"], sa.Text())),
            key.c.job_id == sa.func.any(ids),
            at_leisure == sa.literal_column("'off'"),
        )
        .order_by(key.c.key)
        .with_for_update(skip_locked=True),
        "mine",
    )
    return sa.delete(key).where(members(key.c.key, sa.select(mine.c.key))).returning(key.c.job_id)


def key_holders(ids: Sequence[int], *, job: type[JobMixin] = Job) -> sa.Executable:
    """The jobs among these whose unique keys another job has: the id, and the id of the other job."""
    table, key = table_of(job), table_of(companions_of(job).unique_key)
    mine = table.c.id == sa.func.any(array("of_ids", ids, sa.BigInteger()))
    return (
        sa.select(table.c.id, key.c.job_id)
        .select_from(table.join(key, key.c.key == key_of(table)))
        .where(mine, key.c.job_id != table.c.id)
    )


def drop_expired_keys(*, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Delete at most `limit` expired keys. Returns them."""
    key = table_of(companions_of(job).unique_key)
    over = materialized(
        sa.select(key.c.key)
        .where(key.c.expires_at <= sa.func.now())
        .order_by(key.c.expires_at)
        .limit(sa.bindparam("page", limit, sa.Integer))
        .with_for_update(skip_locked=True),
        "over",
    )
    return (
        sa.delete(key)
        .where(members(key.c.key, sa.select(over.c.key)), key.c.expires_at <= sa.func.now())
        .returning(key.c.key)
    )


def free_stray_keys(*, after: str, limit: int, job: type[JobMixin] = Job) -> sa.Executable:
    """Free, of `limit` keys from `after` (exclusive) on, the keys whose jobs have ended, have another key, or are gone, because of
    plain SQL by hand.

    Returns one row: the last key that was read, NULL if there was none, and how many keys were freed.
    """
    key, table = table_of(companions_of(job).unique_key), table_of(job)
    page = materialized(
        sa.select(key.c.key, key.c.job_id)
        .where(key.c.key > sa.bindparam("after_key", after, sa.Text), key.c.expires_at.is_(None))
        .order_by(key.c.key)
        .limit(sa.bindparam("page", limit, sa.Integer)),
        "page",
    )
    # Tested under the lock: an operator may bring a job back just now.
    ended = lock_in_order(
        table,
        members(table.c.id, sa.select(page.c.job_id)),
        sa.or_(status_in(table.c.status, FINISHED), sa.and_(is_held(table), started_key(table).is_not(None))),
    )
    there = sa.select(table.c.id).where(table.c.id == page.c.job_id, key_of(table) == page.c.key).correlate(page)
    stray = materialized(
        sa.select(page.c.job_id.label("id"), page.c.key).where(
            sa.or_(page.c.job_id.in_(sa.select(ended.c.id)), sa.not_(there.exists()))
        ),
        "stray",
    )
    looked_at = sa.select(sa.func.max(page.c.key)).scalar_subquery()
    return sa.select(looked_at, sa.select(sa.func.count()).select_from(stray).scalar_subquery()).add_cte(
        *given_back([stray], job)
    )


def find_stray_keys(*, limit: int, sample: int = 10_000, job: type[JobMixin] = Job) -> sa.Executable:
    """The keys of jobs that have ended, have another key, or are gone, among the first `sample` keys: to read all keys would be to read
    all their jobs. Columns: key, job_id; and total, of all that were found. No more than `limit` rows, in the order of the keys.
    """
    held, table = table_of(companions_of(job).unique_key), table_of(job)
    first = sa.select(held.c.key, held.c.job_id).where(held.c.expires_at.is_(None)).order_by(held.c.key)
    key = first.limit(sa.bindparam("sample", sample, sa.Integer)).subquery("key")
    # OFFSET 0 is a fence: it is looked up for each key. As a join it would be by a scan of all jobs.
    lives = (
        sa.select(table.c.id)
        .where(table.c.id == key.c.job_id, key_of(table) == key.c.key, sa.not_(status_in(table.c.status, FINISHED)))
        .offset(ZERO)
    )
    return (
        sa.select(key.c.key, key.c.job_id, sa.func.count().over().label("total"))
        .where(sa.not_(lives.exists()))
        .order_by(key.c.key)
        .limit(limit)
    )


def ended_key(table: sa.FromClause, status: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """The key that a job gives back by becoming `status`."""
    return sa.case((status_in(status, FINISHED), key_of(table)), else_=sa.null())


def takes_key(
    table: sa.FromClause, id: sa.ColumnElement[Any], uniqueness: sa.ColumnElement[Any], keyless: sa.ColumnElement[bool]
) -> sa.ColumnElement[bool]:
    """Whether a job may be queued again. A job that is `keyless` takes its key again, unless another job holds it."""
    needs = sa.and_(
        keyless, uniqueness.is_not(None), _text(uniqueness, "scope").is_distinct_from(sa.literal_column("'window'"))
    )
    return sa.case(
        (needs, schema_function("take_key", table.schema, id, uniqueness, of=sa.Boolean())),
        else_=sa.literal_column("true"),
    )


# ---- Unique keys that no job holds any more.


def started_keys(jobs: Iterable[ClaimedJob]) -> dict[int, str]:
    """The keys of the claimed jobs that give their keys back when they are started, by job id."""
    found = [(job.id, extra(job).get("unique")) for job in jobs if job.extra is not None]
    return {job_id: key for job_id, key in found if isinstance(key, str)}


def without_key(job: ClaimedJob) -> ClaimedJob:
    """The claimed job without its unique key, which is free already: at its end there is nothing to give back."""
    left = {name: value for name, value in extra(job).items() if name != "unique"}
    return job._replace(extra=json.dumps(left) if left else None)


class FreedKeys(NamedTuple):
    """A page of keys: the last key that was read, None if there was none; and how many keys were freed."""

    last: str | None
    freed: int


class UniqueKeys(StorePart):
    """Freeing keys of started jobs, expired keys, and keys that changes by hand left behind."""

    def free_started_keys(self, connection: sa.Connection, started: Mapping[int, str]) -> set[int]:
        """Free the keys of started jobs, given by job id. Returns the ids of the jobs whose keys were freed."""
        return {job_id for (job_id,) in self._free_started.rows(connection, started_parameters(started))}

    _free_started = cached_property(lambda self: Compiled(free_started_keys({}, job=self.job)))

    def drop_expired_keys(self, connection: sa.Connection, *, limit: int = 1_000) -> int:
        """Delete a page of the expired keys. Returns how many there were."""
        return len(connection.execute(drop_expired_keys(limit=limit, job=self.job)).all())

    def free_stray_keys(self, connection: sa.Connection, *, after: str = "", limit: int = 1_000) -> FreedKeys:
        """Read a page of keys, and free those whose jobs have ended or are gone."""
        return FreedKeys._make(connection.execute(free_stray_keys(after=after, limit=limit, job=self.job)).one())
