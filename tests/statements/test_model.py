"""A row and its model go through the same random life; after every step they must agree."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, func, select, true, update

from sa_jobqueue.rules.lifecycle import FINISHED, Claim, JobStatus, Rules, decide
from sa_jobqueue.sql.apply import Answer
from sa_jobqueue.sql.claims import ClaimRequest
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import cancel_jobs, discard_jobs, release_jobs, retry_jobs
from tests.support.factory import TABLE, make_job
from tests.support.model import ModelJob
from tests.support.nightly import examples
from tests.support.outcomes import all_rules, rescues, run_outcomes

OPERATORS: dict[str, Any] = {
    "cancel": cancel_jobs(true()),
    "discard": discard_jobs(true()),
    "release": release_jobs(true()),
    "retry": retry_jobs(true()),
}

#: Claims are the most frequent step, because everything else needs one.
steps = st.lists(
    st.one_of(
        st.just(("claim", None)),
        st.just(("claim", None)),
        st.tuples(st.just("end"), st.tuples(run_outcomes, st.integers(0, 1))),
        st.tuples(st.just("rescue"), st.tuples(rescues, st.booleans())),
        st.just(("time passes", None)),
        st.tuples(st.sampled_from(sorted(OPERATORS)), st.none()),
    ),
    max_size=25,
)


class Pair:
    """A row (every job's lease has run out, or none has) and its model."""

    def __init__(self, connection: Connection, model: ModelJob) -> None:
        self.connection, self.model = connection, model
        self.id = make_job(connection, max_attempts=model.max_attempts)
        self.claims: list[Claim] = []

    def claim(self, _: None) -> None:
        found = default_store.claim(self.connection, ClaimRequest(worker="me", queues={"default": 3}, lease=60))
        wanted = self.model.claim(found[0].claim_token if found else None)
        assert [job.id for job in found] == ([self.id] if wanted else [])
        for job in found:
            self.claims.append(Claim(job.id, job.claim_token, job.attempt, job.max_attempts, job.rescues))
            assert wanted is not None
            assert (job.attempt, job.rescues) == (wanted.attempt, wanted.rescues)

    def end(self, drawn: Any) -> None:
        """The last claim ends, or the one before it, which is lost."""
        outcome, back = drawn
        if len(self.claims) > back:
            self._apply(self.claims[-1 - back], outcome, expired=True)

    def rescue(self, drawn: Any) -> None:
        outcome, expired = drawn
        if self.claims:
            ends = func.now() + timedelta(seconds=-1 if expired else 60)
            running = TABLE.c.status == "running"
            self.connection.execute(update(TABLE).where(running).values(lease_expires_at=ends))
            self._apply(self.claims[-1], outcome, expired=expired)

    def _apply(self, claim: Claim, outcome: Any, *, expired: bool) -> None:
        change = decide(claim, outcome, self.model.rules, random=0.5)
        expected = self.model.apply(change) if expired or not change.expired else Answer.LOST
        answer = default_store.apply(self.connection, [change])
        assert answer == {self.id: expected}

    def time_passes(self, _: None) -> None:
        self.model.time_passes()
        self.connection.execute(update(TABLE).where(TABLE.c.status == "queued").values(run_at=func.now()))

    def operate(self, name: str) -> None:
        found = self.connection.scalars(OPERATORS[name]).all()
        assert list(found) == ([self.id] if getattr(self.model, name)() else [])

    def agree(self) -> None:
        model = self.model
        row = self.connection.execute(select(TABLE, func.now().label("now"))).one_or_none()
        assert (row is None) == model.deleted
        if row is None:
            return
        assert (row.status, row.claims, row.claim_token, row.attempt, row.rescues) == (
            model.status, model.claims, model.claim_token, model.attempt, model.rescues,
        )  # fmt: skip
        assert len(row.errors) == model.errors
        assert (row.cancel_requested_at is not None) == model.cancel_requested
        assert (row.finished_at is not None) == (row.status in FINISHED)
        assert row.purge_at is None or row.status in FINISHED
        assert (row.lease_expires_at is not None) == (row.status == JobStatus.RUNNING)
        if row.status == JobStatus.QUEUED:
            assert (row.run_at <= row.now) == model.due


@settings(examples(60, nightly=250), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(max_attempts=st.integers(1, 3), rules=all_rules, steps=steps)
def test_a_row_lives_as_its_model(engine: Engine, max_attempts: int, rules: Rules, steps: list[Any]) -> None:
    """Claims, outcomes, rescues and operators in any order: the statements do what the life cycle says."""
    with engine.connect() as connection:
        pair = Pair(connection, ModelJob(max_attempts, rules))
        for name, drawn in steps:
            if name in OPERATORS:
                pair.operate(name)
            else:
                getattr(pair, name.replace(" ", "_"))(drawn)
            pair.agree()
