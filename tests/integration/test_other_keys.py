"""Keys that only limit, with real workers: the limit holds over all of them, whatever happens to their processes and jobs."""

from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, literal, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, KeyLimits, TaskName, Workflow, enqueue, enqueue_many, enqueue_select
from sa_jobqueue.models import Schedule, WorkerRow
from sa_jobqueue.statements import cancel_jobs, copy_jobs, release_jobs, set_limit
from tests.support.browsing import Viewer
from tests.support.cli import as_json, invoke, notes, output, refused
from tests.support.commands import Command, start_command
from tests.support.factory import TABLE
from tests.support.keys_app import ask, most_at_once
from tests.support.killed import FOLDER
from tests.support.limits import Claimant, end
from tests.support.waiting import wait_until
from tests.support.working import add, finished, long_healthy

_COMMAND = ("work", "--app", "tests.support.keys_app:registry", "--queue", "default=8", "--lease", "2")


def jobs_of(provider: str, number: int) -> list[Job]:
    """Each of a key of its own."""
    return [enqueue(ask.options(key=f"{provider} {n}", keys={"provider": provider}), provider) for n in range(number)]


def running(engine: Engine, provider: str) -> int:
    """How many jobs of the provider run."""
    with engine.connect() as connection:
        here = (Job.status == JobStatus.RUNNING, Job.args["provider"].astext == provider)
        return connection.scalar(select(func.count()).where(*here)) or 0


def workers(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(WorkerRow)) or 0


def test_a_limit_holds_while_the_workers_are_killed(engine: Engine, database_url: str, tmp_path: Path) -> None:
    """Two real processes, eight slots each, two permits of a provider. A kill -9 gives no permit away before the rescue, and keeps none for good; a
    cancelled and a released job give theirs back.
    """
    env, effects = {FOLDER: str(tmp_path)}, tmp_path / "effects"

    def lines() -> list[str]:
        return effects.read_text().splitlines() if effects.exists() else []

    def seen(provider: str) -> int:
        """How many runs of the provider have begun; no more than its limit run."""
        assert running(engine, provider) <= 2
        return sum(line.startswith(f"start {provider} ") for line in lines())

    long_healthy(engine, 2.0)
    with ExitStack() as stack:
        started: list[Command] = [
            stack.enter_context(start_command(*_COMMAND, url=database_url, env=env)) for _ in "12"
        ]
        wait_until(lambda: workers(engine) == 2)
        ids = add(engine, *jobs_of("openai", 12), *jobs_of("other", 2))
        wait_until(lambda: (seen("openai"), seen("other")) == (2, 2))

        victim = int(lines()[0].split()[2])
        lost = sum(line.endswith(f" openai {victim}") for line in lines())
        next(command for command in started if command.pid == victim).kill()
        stack.enter_context(start_command(*_COMMAND, url=database_url, env=env))
        wait_until(lambda: seen("openai") == 2 + lost)
        assert running(engine, "openai") == 2

        with engine.begin() as connection:
            of_openai = (Job.status == JobStatus.RUNNING, Job.args["provider"].astext == "openai")
            one, two = connection.scalars(select(Job.id).where(*of_openai).order_by(Job.id))
            connection.execute(release_jobs(Job.id == one))
            connection.execute(cancel_jobs(Job.id == two))
        wait_until(lambda: seen("openai") > 2 + lost)
        (tmp_path / "answers").touch()
        wait_until(lambda: finished(engine, *ids))
    most = most_at_once(lines(), {victim})
    assert most["other"] <= 2


#: The most jobs of a queue or a task that run with one value of a key.
_MOST_AT_ONCE = text("""
    SELECT coalesce(max(number), 0) FROM (
        SELECT count(*) AS number FROM sa_jobqueue.job, jsonb_each_text(extras -> 'keys') AS k, unnest(ARRAY['q ' || queue, 't ' || task]) AS o
        WHERE status = 'running' GROUP BY o, k.key, k.value) AS by_value
""")


@pytest.mark.parametrize("number", [240, pytest.param(3_000, marks=pytest.mark.nightly)])
def test_eight_workers_over_two_keys_in_opposite_order_do_not_deadlock(engine: Engine, number: int) -> None:
    """Two queues and two tasks limit both keys. Claims take the locks of queues and tasks in one order, and none of a value; all jobs are done."""
    limits = {"a": KeyLimits(running=3), "b": KeyLimits(running=3)}
    keys = ({"a": "x", "b": "y"}, {"a": "y", "b": "x"})
    names = ("one", "two")
    with engine.begin() as connection:
        for name in names:
            connection.execute(set_limit(name, per=limits))
            connection.execute(set_limit(name, owner="task", per=limits))
        rows: list[dict[str, Any]] = [
            {"queue": names[n % 2], "task": names[n // 2 % 2], "concurrency_key": f"{n % 7}", "extras": {"keys": keys[n // 4 % 2]}}
            for n in range(number)
        ]  # fmt: skip
        connection.execute(insert(TABLE), rows)

    def work(seed: int) -> int:
        chosen, done, left = random.Random(seed), 0, number
        with engine.connect() as connection:
            claimant = Claimant(connection, name=f"{seed}")
            while left:
                jobs = claimant.claim_once(
                    dict.fromkeys(chosen.choice([names, names[:1], names[1:]]), chosen.randint(1, 4))
                )
                connection.commit()
                assert connection.scalar(_MOST_AT_ONCE) <= 3
                end(connection, jobs)
                left = connection.scalar(select(func.count()).where(TABLE.c.status != "completed"))
                connection.commit()
                done += len(jobs)
        return done

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(work, range(8))) == number


def test_all_ways_to_enqueue_carry_the_keys(engine: Engine, url: str) -> None:
    """In bulk, from a SELECT, by a schedule, as members of a workflow, and as a copy."""
    task = TaskName("ask").options(key="acme", keys={"provider": "openai"})
    flow = Workflow()
    flow.add(task, provider="flow")
    with Session(engine) as session:
        session.execute(enqueue_many([task.call(provider="many")]))
        session.execute(enqueue_select(task, select(literal("select").label("provider"))))
        session.add(flow)
        session.commit()
        session.execute(copy_jobs(Job.args["provider"].astext == "many"))
        session.commit()
        found = session.execute(select(Job.concurrency_key, Job.extras["keys"])).all()
    assert found == [("acme", {"provider": "openai"})] * 4

    added = ("schedule", "add", "0 3 * * *", "ask", "--key", "acme", "--keys", "provider=openai")
    output(*added, url=url)
    with engine.connect() as connection:
        kept = connection.execute(select(Schedule.concurrency_key, Schedule.extras)).one()
    assert kept == ("acme", {"keys": {"provider": "openai"}})


def test_operators_set_and_see_limits_of_other_keys(engine: Engine, url: str) -> None:
    """On the command line, where the job that waits and its page say what for, and on the dashboard."""
    with engine.begin() as connection:
        connection.execute(set_limit("llm", per={"provider": KeyLimits(running=9)}))
    one = ("enqueue", "ask", '{"provider": "openai"}', "--queue", "llm", "--keys", "provider=openai")
    job = as_json(*one, "--key", "acme", "--keys", "region=eu", url=url)
    assert (job["key"], job["keys"]) == ("acme", {"provider": "openai", "region": "eu"})
    assert "queue llm · key beta · provider=openai · priority" in notes(invoke(*one, "--key", "beta", url=url))
    assert "\nkey acme\nother keys provider=openai, region=eu\n" in output("show", str(job["id"]), url=url)
    assert "need a key" in refused(*one, url=url)
    assert "--keys must be a name and a value, as in provider=openai, not 'x'" in refused(*one, "--keys", "x", url=url)

    of = ("llm", "--of", "provider", "--key", "openai")
    assert output("limits", "set", *of, "--running", "1", url=url) == "set limits of queue llm, provider openai\n"
    with engine.begin() as connection:
        (claimed,) = Claimant(connection, "llm").claim()
    waiting = job["id"] if claimed.id != job["id"] else job["id"] + 1
    assert "waits for limit llm/provider=openai: 1 of 1 running" in invoke("why", str(waiting), url=url).output
    listed = output("limits", "list", url=url)
    assert "each provider: 9 running" in listed
    assert re.search(r"\n  provider openai +1 of 1 +1\b", listed)

    viewer = Viewer(engine)
    seen = viewer.see("/limits").text
    assert "each provider: 9 running" in seen
    assert "queue llm , provider openai 1 / 1" in seen
    page = viewer.see(f"/jobs/{job['id']}").text
    assert "provider=openai, region=eu" in page
    assert "/keys/provider" not in viewer.get(f"/jobs/{waiting}").text
    assert "set_limit" not in viewer.get("/keys/openai").text

    assert output("limits", "remove", *of, url=url) == "removed limits of queue llm, provider openai\n"
    assert "--of provider names another key, and its value is missing: give it by --key" in refused(
        "limits", "set", "llm", "--of", "provider", "--running", "1", url=url
    )
    assert "a weight is that of the key by which jobs take turns" in refused(
        "limits", "set", *of, "--weight", "2", url=url
    )
