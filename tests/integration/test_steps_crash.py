"""A worker is killed at every point between two steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import Signal, enqueue
from tests.support.commands import start_command
from tests.support.killed import FOLDER
from tests.support.step_app import POINTS, ship
from tests.support.waiting import wait_until
from tests.support.working import add_one, job_of, long_healthy


@pytest.mark.nightly
def test_a_crash_repeats_a_step_only_where_it_fell_between_its_effect_and_its_record(
    engine: Engine, url: str, tmp_path: Path
) -> None:
    """At each point the worker is killed by `kill -9`. Every effect in the database exists once."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS effect (n text)"))
        connection.execute(text("TRUNCATE effect"))
    with Session(engine) as session:
        session.add(Signal("go", "!"))
        session.commit()
    long_healthy(engine, 2.0)
    job = add_one(engine, enqueue(ship))
    runs = 0
    while not job_of(engine, job).is_finished:
        runs += 1
        assert runs <= len(POINTS) + 1
        options = ("--app=tests.support.step_app:registry", "--lease=2", "--max-rescues=50")
        with start_command("work", *options, url=url, env={FOLDER: str(tmp_path)}) as worker:
            wait_until(lambda: worker.process.poll() is not None or job_of(engine, job).is_finished, 60)

    assert runs == len(POINTS) + 1
    assert sorted((tmp_path / "effects").read_text().split("\n")[:-1]) == ["a", "a", "b A", "b A"]
    with Session(engine) as session:
        assert sorted(session.scalars(text("SELECT n FROM effect"))) == ["end", "mark"]
        assert session.scalar(text("SELECT count(*) FROM sa_jobqueue.signal")) == 0
    assert job_of(engine, job).result == "AB!"
    assert job_of(engine, job).rescues == len(POINTS)
