"""The queue with schedules: what `machine` does, and beside it schedules that tick, clash, fail, are paused and edited.

All rules are intervals of hours, and time passes by turning back what the database holds of times. So the seconds that a run
takes bring no tick.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from sqlalchemy import ColumnElement, Connection, delete, func, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import Schedule, TaskName, Unique, every
from sa_jobqueue.rules.lifecycle import FINISHED, JobStatus, Rules
from sa_jobqueue.rules.outcomes import Outcome
from sa_jobqueue.sql.schedules.due import Ticked
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import pause_schedules, remove_schedules, resume_schedules, run_schedules
from tests.properties.machine import LATER, QUEUES, QueueMachine, Tracked, kept, queues, uniques, which
from tests.support.factory import TABLE
from tests.support.model_schedule import ModelSchedule, Plan
from tests.support.outcomes import all_rules, plain_outcomes

SCHEDULE = Schedule.__table__
HOUR = timedelta(hours=1)
MOST = 4
#: Later than any time for which a job is queued again.
FAR_OFF = timedelta(days=3_650)

missed = st.sampled_from(["once", "skip", "all"])
overlaps = st.sampled_from(["allow", "skip", "queue_one", "cancel_running"])
catch_ups = st.none() | st.just(1.5 * HOUR)
#: For which of the schedules how many hours pass.
turns = st.tuples(st.just({0, 1, 2, 3}) | st.sets(which), st.sampled_from([0.5, 1, 2, 3]))


class Made(NamedTuple):
    """How the jobs of a schedule are made: by their rules, and whether they have an expiry and a deadline."""

    rules: Rules
    unique: Unique | None
    expires: bool
    has_deadline: bool


class ScheduleMachine(QueueMachine):
    """Subclassed as `QueueMachine`."""

    def __init__(self) -> None:
        super().__init__()
        with self.connection.begin():
            self.connection.execute(delete(SCHEDULE))
        self.schedules: dict[int, ModelSchedule] = {}
        #: By schedule: how its jobs are made. It outlives the schedule, as its jobs do.
        self.made_as: dict[int, Made] = {}

    @contextmanager
    def transaction(self, *, kept: bool = True) -> Iterator[Connection]:
        before = copy.deepcopy(self.schedules)
        with super().transaction(kept=kept) as connection:
            yield connection
        if not kept:
            self.schedules = before

    def _chosen(self, chosen: set[int]) -> list[int]:
        newest = sorted(self.schedules, reverse=True)
        return sorted(newest[back] for back in chosen if back < len(newest))

    @initialize(
        kinds=st.lists(
            st.tuples(missed, overlaps, catch_ups, st.none() | st.integers(1, 2), st.booleans(), st.booleans()),
            max_size=2,
        )
    )
    def begin(self, kinds: list[tuple[Any, Any, timedelta | None, int | None, bool, bool]]) -> None:
        for *kind, expires, has_deadline in kinds:
            self.add_schedule(1, *kind, timedelta(0), "mail", Rules(), None, expires, has_deadline, kept=True)

    @precondition(lambda self: len(self.schedules) < MOST)
    @rule(
        hours=st.sampled_from([1, 2]), missed=missed, overlap=overlaps, catch_up=catch_ups, pause_after=st.none() | st.integers(1, 2),
        jitter=st.sampled_from([timedelta(0), 2 * HOUR]),
        queue=queues, rules=all_rules, unique=uniques, expires=st.booleans(), has_deadline=st.booleans(), kept=kept,
    )  # fmt: skip
    def add_schedule(
        self, hours: int, missed: Any, overlap: Any, catch_up: timedelta | None, pause_after: int | None, jitter: timedelta,
        queue: str, rules: Rules, unique: Unique | None, expires: bool, has_deadline: bool, kept: bool,
    ) -> None:  # fmt: skip
        if missed == "all":
            overlap = "allow"  # others are refused
        task = TaskName("a_task").options(
            queue=queue, max_attempts=2, unique=unique or False, expires_in=FAR_OFF if expires else False,
            deadline=FAR_OFF if has_deadline else False,
        )  # fmt: skip
        with (
            self.transaction(kept=kept) as connection,
            Session(connection) as session,
        ):
            made = Schedule(
                every(hours * HOUR), task, name=f"schedule {len(self.made_as)}", missed=missed, catch_up=catch_up, overlap=overlap,
                jitter=jitter, pause_after=pause_after,
            )  # fmt: skip
            session.add(made)
            session.flush()
            now = self._now()
            self.schedules[made.id] = ModelSchedule(
                hours * HOUR, now, now, missed, catch_up, overlap, jitter, pause_after
            )
            self.made_as[made.id] = Made(rules, unique, expires, has_deadline)

    def _now(self) -> datetime:
        return self.connection.execute(select(func.now())).scalar_one()

    @precondition(lambda self: self.schedules)
    @rule(turns=st.lists(turns, min_size=1, max_size=3), limit=st.sampled_from([1, 9, 9]), kept=kept)
    def tick(self, turns: list[tuple[set[int], float]], limit: int, kept: bool) -> None:
        """Time passes for some of the schedules, and a worker looks at a page of those that are due; a few times."""
        for chosen, hours in turns:
            self._tick(chosen, hours, limit, kept)
            self.agree()

    def _tick(self, chosen: set[int], hours: float, limit: int, kept: bool) -> None:
        with self.transaction(kept=kept) as connection:
            self._turn_back(self._chosen(chosen), hours * HOUR)
            now, ticked = self._now(), Ticked()
            due = sorted((one.due_at, id) for id, one in self.schedules.items() if one.is_due(now))
            page = [id for _, id in due][:limit]
            plans = {id: self.schedules[id].plan(now) for id in page}
            failing = [id for id in page if plans[id].jobs and self._fails(id)]
            live = {id for id in page if self._live(id)}
            default_store.enqueue_due(connection, ticked, limit=limit, random=lambda: 0.5)
            wanted = self._step(plans, failing, live, now)
            assert ticked.ids == page
            assert sorted(ticked.paused) == sorted((self._name(id), self.schedules[id].pause_after) for id in failing)
            assert ticked.enqueued == len(wanted)
            assert ticked.bad == []
            self._enqueued(wanted, now)

    def _step(
        self, plans: dict[int, Plan], failing: list[int], live: set[int], now: datetime
    ) -> list[tuple[int, datetime, int]]:
        wanted, cancelled = [], []
        for id, plan in plans.items():
            schedule = self.schedules[id]
            if id in failing:
                schedule.paused_by, schedule.due_at = "failures", now
                continue
            jobs, cancels = schedule.step(plan, now, live=id in live)
            cancelled += self._live(id) if cancels else []
            wanted += [(id, *one) for one in jobs]
        done = [id for id in cancelled if self._operate("cancel", self.jobs[id])]
        self._operated("cancel", done, done)
        return wanted

    def _live(self, id: int) -> list[int]:
        return [one for one, job in self.jobs.items() if job.schedule == id and job.status not in FINISHED]

    def _fails(self, id: int) -> bool:
        """Whether the last jobs have failed, since it began to count; the rows say in which order they finished."""
        schedule, columns = self.schedules[id], TABLE.c
        if schedule.pause_after is None:
            return False
        theirs = columns.schedule_id == id, columns.finished_at >= schedule.counts_from
        # Of those that finished together the failed ones come last here.
        order = columns.finished_at.desc(), columns.status == "failed"
        last = self.connection.execute(select(columns.id).where(*theirs).order_by(*order)).scalars().all()
        return [self.jobs[one].status for one in last[: schedule.pause_after]] == [
            JobStatus.FAILED
        ] * schedule.pause_after

    def _name(self, id: int) -> str:
        return f"schedule {list(self.made_as).index(id)}"

    def _turn_back(self, ids: list[int], by: timedelta) -> None:
        columns, jobs = SCHEDULE.c, TABLE.c
        times: list[ColumnElement[Any]] = [
            columns.counts_from, columns.due_at, columns.next_at, columns.last_tick_at, columns.waiting_since
        ]  # fmt: skip
        self.connection.execute(update(SCHEDULE).where(columns.id.in_(ids)).values({one: one - by for one in times}))
        theirs = update(TABLE).where(jobs.schedule_id.in_(ids))
        self.connection.execute(theirs.values(tick_at=jobs.tick_at - by, finished_at=jobs.finished_at - by))
        for id in ids:
            self.schedules[id].turn_back(by)
        for job in self.jobs.values():
            if job.schedule in ids and job.tick_at is not None:
                job.tick_at -= by

    def _enqueued(self, wanted: list[tuple[int, datetime, int]], now: datetime, *, by_hand: bool = False) -> list[int]:
        """These jobs were made, as (schedule, tick, number of ticks), in the order of their keys."""
        columns = TABLE.c
        new = columns.id.not_in(list(self.jobs)), columns.schedule_id.is_not(None)
        found = self.connection.execute(
            select(columns.id, columns.schedule_id, columns.tick_at, columns.ticks).where(*new).order_by(columns.id)
        ).all()
        assert sorted(tuple(row)[1:] for row in found) == sorted(wanted)
        for id, of, tick_at, ticks in found:
            made_as = self.made_as[of]
            schedule = self.schedules[of]
            row = self.connection.execute(select(SCHEDULE.c.queue).where(SCHEDULE.c.id == of)).one()
            job = self.jobs[id] = Tracked(
                2, made_as.rules, queue=row.queue, schedule=of, tick_at=tick_at, ticks=ticks, by_hand=by_hand,
                expires=made_as.expires, has_deadline=made_as.has_deadline,
            )  # fmt: skip
            later = not by_hand and tick_at + schedule.jitter / 2 > now
            job.comes(LATER if later else self.now)
            self._made(job, made_as.unique)
        return [row.id for row in found]

    @precondition(lambda self: self.schedules)
    @rule(
        chosen=st.sets(which, min_size=1),
        name=st.sampled_from(["pause", "pause", "resume", "resume", "run", "remove"]),
        kept=kept,
    )
    def operate_schedules(self, chosen: set[int], name: str, kept: bool) -> None:
        ids = self._chosen(chosen)
        where = Schedule.id.in_(ids)
        with self.transaction(kept=kept) as connection:
            now = self._now()
            if name == "run":
                made = connection.scalars(run_schedules(where)).all()
                assert sorted(made) == self._enqueued([(id, now, 1) for id in ids], now, by_hand=True)
                return
            builder = {"pause": pause_schedules, "resume": resume_schedules, "remove": remove_schedules}[name]
            found = connection.scalars(builder(where)).all()
            done = [id for id in ids if name != "resume" or self.schedules[id].paused_by is not None]
            assert sorted(found) == sorted(map(self._name, done))
            for id in done:
                schedule = self.schedules[id]
                if name == "pause":
                    schedule.paused_by, schedule.due_at = "operator", now
                elif name == "resume":
                    schedule.paused_by = None
                    schedule.count_from(now)
                else:
                    del self.schedules[id]

    @precondition(lambda self: self.schedules)
    @rule(
        back=which, hours=st.sampled_from([None, None, 1, 2]), missed=missed, overlap=overlaps, catch_up=catch_ups, kept=kept
    )  # fmt: skip
    def edit(
        self, back: int, hours: int | None, missed: str, overlap: str, catch_up: timedelta | None, kept: bool
    ) -> None:
        """By hand, in SQL; combinations that code may not declare are among them. A changed rule begins to count again."""
        for id in self._chosen({back}):
            with self.transaction(kept=kept) as connection:
                values: dict[str, Any] = {
                    "missed": missed,
                    "overlap": overlap,
                    "catch_up": catch_up and catch_up.total_seconds(),
                }
                if hours is not None:
                    values["expression"] = every(hours * HOUR).expression
                connection.execute(update(SCHEDULE).where(SCHEDULE.c.id == id).values(values))
                schedule = self.schedules[id]
                schedule.missed, schedule.overlap, schedule.catch_up = missed, overlap, catch_up
                if hours is not None:
                    now = self._now()
                    schedule.due_at = now
                    if hours * HOUR != schedule.interval:
                        schedule.interval = hours * HOUR
                        schedule.count_from(now)

    @precondition(lambda self: any(job.status is JobStatus.QUEUED and job.due for job in self.jobs.values()))
    @rule(outcome=plain_outcomes)
    def work(self, outcome: Outcome) -> None:
        """A worker takes what is due, and all of it comes to the same end."""
        number = len(self.claims)
        self.claim("ada", dict.fromkeys(QUEUES, 3), "known")
        self.agree()
        if taken := len(self.claims) - number:
            self.finish([(back, outcome) for back in range(taken)], kept=True)

    @invariant()
    def agree(self) -> None:
        """Schedules, too, are what the model says; each tick has one job at most, and none is left uncounted."""
        super().agree()
        with self.connection.begin():
            rows = {row.id: row for row in self.connection.execute(select(SCHEDULE))}
        assert rows.keys() == self.schedules.keys()
        for id, row in rows.items():
            schedule = self.schedules[id]
            for name in ("counts_from", "due_at", "next_at", "last_tick_at", "waiting_since", "left_out", "paused_by"):
                assert (name, getattr(row, name)) == (name, getattr(schedule, name))
            assert (row.paused_at is None) == (row.pause_reason is None) == (schedule.paused_by is None)
            assert row.error is None
        ticks = [
            (job.schedule, job.tick_at) for job in self.jobs.values() if job.tick_at is not None and not job.by_hand
        ]
        assert len(ticks) == len(set(ticks))
