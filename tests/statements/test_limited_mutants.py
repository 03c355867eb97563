"""Two claims at once keep the limits; and each way to break that is seen by the same look."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine

from tests.faults.limited_mutants import MUTANTS, mutate
from tests.support.factory import TABLE, wait_until_blocked_by
from tests.support.limits import Claimant, fill, limit


def most_of_a_key(engine: Engine) -> int:
    """Two claims at once from one key, which may run one job; how many run."""
    with engine.begin() as setup:
        fill(setup, 10, "a")
        limit(setup, key_running=1)
    with engine.connect() as one, engine.connect() as two:
        Claimant(one, name="9").claim(1)
        Claimant(two, name="1").claim(1)
        one.commit()
        two.commit()
        return running(engine)


def most_of_a_queue(engine: Engine) -> int:
    """Two claims at once from a queue, which may run one job; how many run."""
    with engine.begin() as setup:
        fill(setup, 10)
        limit(setup, running=1)
    with engine.connect() as one, engine.connect() as two, ThreadPoolExecutor(1) as threads:
        Claimant(one, name="9").claim(1)
        second = threads.submit(Claimant(two, name="1").claim, 1)
        if not second.done():
            try:
                wait_until_blocked_by(one)
            except AssertionError:
                assert second.done()  # a mutant, which waits for nobody
        one.commit()
        second.result(30)
        two.commit()
        return running(engine)


def most_of_a_queue_one_after_the_other(engine: Engine) -> int:
    """The same, where the second comes after the first one's commit."""
    with engine.begin() as setup:
        fill(setup, 10)
        limit(setup, running=1)
    for name in ("9", "1"):
        with engine.begin() as connection:
            Claimant(connection, name=name).claim(1)
    return running(engine)


def running(engine: Engine) -> int:
    with engine.connect() as connection:
        return len(connection.execute(TABLE.select().where(TABLE.c.status == "running")).all())


LOOKS = [most_of_a_key, most_of_a_queue, most_of_a_queue_one_after_the_other]
SEEN_BY = {
    "without the locks": most_of_a_queue,
    "without the locks of keys": most_of_a_key,
    "locks and counts in one statement": most_of_a_queue,
    "does not count the rows of some workers": most_of_a_queue_one_after_the_other,
}


@pytest.mark.parametrize("look", LOOKS, ids=[look.__name__ for look in LOOKS])
def test_one_runs_where_one_may(engine: Engine, look: object) -> None:
    """Whoever comes first."""
    assert callable(look)
    assert look(engine) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mutant_lets_two_run(database_url: str, engine: Engine, mutant: str) -> None:
    """In a database of its own."""
    with engine.begin() as connection:
        mutate(connection, mutant)
    assert SEEN_BY[mutant](engine) == 2
