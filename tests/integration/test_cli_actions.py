"""Acting: `retry`, `cancel`, `discard`, `prune`; by ids and by filters, and never on everything by mistake."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text

from tests.support.cli import as_json, invoke, notes, output, refused
from tests.support.factory import make_job, make_jobs, refer, row, statuses, users_table
from tests.support.nightly import nightly

ALL = ("queued", "blocked", "running", "completed", "failed", "cancelled")


def one_of_each(engine: Engine, **columns: object) -> dict[str, int]:
    with engine.begin() as connection:
        return {status: make_job(connection, status, **columns) for status in ALL}


def now(engine: Engine) -> dict[int, str]:
    with engine.begin() as connection:
        return statuses(connection)


@pytest.mark.parametrize("verb", ["retry", "cancel", "discard", "prune"])
def test_an_action_on_all_jobs_needs_all(engine: Engine, url: str, verb: str) -> None:
    """Without ids, filters or --all it is refused; with --all and a filter, too."""
    jobs = one_of_each(engine)
    assert "say which jobs" in refused(verb, url=url)
    assert "contradict" in refused(verb, "--all", "--queue", "mail", url=url)
    assert now(engine) == {job: status for status, job in jobs.items()}


@pytest.mark.parametrize(
    ("verb", "by_id", "by_all"),
    [
        ("retry", {"queued", "completed", "failed", "cancelled"}, {"failed"}),
        ("cancel", {"queued", "blocked", "running"}, {"queued", "blocked", "running"}),
        ("discard", {"queued", "blocked"}, {"queued", "blocked"}),
        ("prune", {"completed", "failed", "cancelled"}, {"completed", "failed", "cancelled"}),
    ],
)
def test_a_dry_run_counts_what_would_be_touched(
    engine: Engine, url: str, verb: str, by_id: set[str], by_all: set[str]
) -> None:
    """By the same criteria and in the same states; and it writes nothing."""
    for choice, touched in (("ids", by_id), ("--all", by_all)):
        jobs = one_of_each(engine, queue=choice)
        before = now(engine)
        chosen = [str(job) for job in jobs.values()] if choice == "ids" else ["--queue", choice]
        dry = json.loads(invoke(verb, *chosen, "--dry-run", "--json", url=url).stdout)
        assert now(engine) == before
        real = json.loads(invoke(verb, *chosen, "--json", url=url).stdout)
        assert dry | {"dry_run": False} == real
        assert real["count"] == len(touched)
        if choice == "ids":
            assert set(real["not_touched"].values()) == set(ALL) - touched


def test_retry_runs_failed_jobs_again_and_leaves_completed_ones(engine: Engine, url: str) -> None:
    """Filters choose among the failed jobs, unless --status names others."""
    with engine.begin() as connection:
        failed = make_job(connection, "failed", queue="mail", attempt=5)
        completed = make_job(connection, "completed", queue="mail")
    assert output("retry", "--queue", "mail", url=url) == "retried 1 job\n"
    assert now(engine) == {failed: "queued", completed: "completed"}
    with engine.begin() as connection:
        assert row(connection, failed).attempt == 0
    assert output("retry", "--queue", "mail", "--status", "completed", url=url) == "retried 1 job\n"


def test_cancel_says_which_jobs_still_run(engine: Engine, url: str) -> None:
    """A waiting job is cancelled at once; a running one is asked to stop."""
    with engine.begin() as connection:
        waiting, running = make_job(connection), make_job(connection, "running")
    assert output("cancel", str(waiting), str(running), url=url) == (
        "cancelled 2 jobs, 1 of them still running and asked to stop\n"
    )
    assert now(engine) == {waiting: "cancelled", running: "running"}
    with engine.begin() as connection:
        assert row(connection, running).cancel_requested_at is not None


def test_discard_writes_the_reason_into_the_errors(engine: Engine, url: str) -> None:
    """`show` says it of the job later."""
    with engine.begin() as connection:
        number = make_job(connection, task="gone")
    assert output("discard", "--task", "gone", "--reason", "the shop is closed", url=url) == "discarded 1 job\n"
    with engine.begin() as connection:
        job = row(connection, number)
    assert (job.status, job.errors[0]["message"]) == ("failed", "the shop is closed")


def test_an_id_that_cannot_be_touched_is_said(engine: Engine, url: str) -> None:
    """Exit code 1: what was asked for by name was not all done; the rest was."""
    with engine.begin() as connection:
        waiting, running = make_job(connection), make_job(connection, "running")
    result = invoke("discard", str(waiting), str(running), "99", url=url)
    assert (result.exit_code, result.stdout) == (1, "discarded 1 job\n")
    assert notes(result) == f"not touched: {running} (running), 99 (no such job)\n"
    assert now(engine) == {waiting: "failed", running: "running"}


@pytest.mark.parametrize("dry_run", [(), *nightly(("--dry-run",))], ids=" ".join)
@pytest.mark.parametrize("verb", ["retry", *nightly("cancel", "discard", "prune")])
def test_any_number_of_ids_is_taken(engine: Engine, url: str, verb: str, dry_run: tuple[str, ...]) -> None:
    """A statement has 65,535 parameters at most."""
    with engine.begin() as connection:
        make_job(connection, "completed" if verb == "prune" else "queued", id=7)
    result = invoke(verb, *map(str, range(1, 65_537)), *dry_run, "--json", url=url)
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["count"], len(answer["not_touched"])) == (1, 1, 65_535)


def test_ids_and_filters_narrow_each_other(engine: Engine, url: str) -> None:
    """An id that the filters leave out is not touched, and exit code 1 says so."""
    with engine.begin() as connection:
        mail, other = make_job(connection, queue="mail"), make_job(connection)
    assert invoke("cancel", str(mail), str(other), "--queue", "mail", url=url).exit_code == 1
    assert now(engine) == {mail: "cancelled", other: "queued"}


def test_a_limit_takes_the_oldest(engine: Engine, url: str) -> None:
    """Of those that can be acted on."""
    with engine.begin() as connection:
        make_job(connection, "completed")
        ids = [make_job(connection) for _ in range(3)]
        ended = [make_job(connection, "cancelled", queue="old") for _ in range(3)]
    assert as_json("cancel", "--all", "--limit", "2", "--dry-run", url=url)["count"] == 2
    assert output("cancel", "--all", "--limit", "2", url=url) == "cancelled 2 jobs\n"
    assert [now(engine)[one] for one in ids] == ["cancelled", "cancelled", "queued"]
    assert output("prune", "--queue", "old", "--limit", "2", url=url) == "pruned 2 jobs\n"
    assert set(ended) & now(engine).keys() == {ended[2]}


def test_a_job_that_the_limit_left_out_is_named_with_the_limit(engine: Engine, url: str) -> None:
    """Of the ids that were given; its status alone would not say why."""
    with engine.begin() as connection:
        ids = [make_job(connection) for _ in range(2)]
    result = invoke("cancel", *map(str, ids), "--limit", "1", url=url)
    assert notes(result) == f"not touched: {ids[1]} (queued, beyond --limit 1)\n"


def test_retried_jobs_can_be_spread_over_a_time(engine: Engine, url: str) -> None:
    """Evenly, in the order of their ids, from now on; a job that ran an hour ago and one that has ten attempts behind it alike."""
    with engine.begin() as connection:
        ids = [make_job(connection, "failed") for _ in range(4)]
    assert output("retry", "--all", "--spread", "1h", url=url) == "retried 4 jobs\n"
    with engine.begin() as connection:
        due = [row(connection, one).run_at for one in ids]
        assert due[0] <= connection.scalar(text("SELECT now()"))
    assert [time - due[0] for time in due] == [timedelta(minutes=15 * place) for place in range(4)]


def test_release_takes_running_jobs_from_their_worker(engine: Engine, url: str) -> None:
    """They spend no attempt; others are left."""
    with engine.begin() as connection:
        running, waiting = make_job(connection, "running", attempt=1), make_job(connection, run_at=timedelta(hours=1))
    assert output("release", "--all", "--delay", "10m", url=url) == "released 1 job\n"
    assert now(engine) == {running: "queued", waiting: "queued"}
    with engine.begin() as connection:
        assert row(connection, running).attempt == 0
        assert row(connection, running).run_at > connection.scalar(text("SELECT now() + interval '9 minutes'"))


def test_edit_changes_what_is_not_running(engine: Engine, url: str) -> None:
    """Arguments, queue, priority and time; nothing, and what cannot be, is refused."""
    with engine.begin() as connection:
        waiting, running = make_job(connection, queue="mail"), make_job(connection, "running", queue="mail")
    said = output(
        "edit", "--queue", "mail", "--args", '{"order_id": 8}', "--to-queue", "slow", "--to-priority", "9",
        "--run-at", "2030-01-31T09:00+01:00", url=url,
    )  # fmt: skip
    assert said == "edited 1 job\n"
    with engine.begin() as connection:
        job = row(connection, waiting)
        assert (job.args, job.queue, job.priority) == ({"order_id": 8}, "slow", 9)
        assert job.run_at == datetime(2030, 1, 31, 8, tzinfo=UTC)
        assert row(connection, running).queue == "mail"
    assert invoke("edit", str(running), "--delay", "1m", url=url).exit_code == 1
    assert "say what is to change" in refused("edit", str(waiting), url=url)
    assert "must be a JSON object" in refused("edit", str(waiting), "--args", "[]", url=url)
    assert "priority must be an integer from 0 to 9" in refused("edit", str(waiting), "--to-priority", "10", url=url)


def test_fork_repeats_a_job_from_a_step_on(engine: Engine, url: str) -> None:
    """`show` and `why` list the steps of the job."""
    with engine.begin() as connection:
        done = make_job(connection, "completed")
        for name, kind, result in (
            ("label", "step", '"geheim: postgresql://me:pw@db/shop"'),
            ("sleep", "sleep", None),
            ("book", "step", "null"),
        ):
            sql = "INSERT INTO sa_jobqueue.step (job_id, claim_token, took, revision, kind, name, result) VALUES (:job, 1, 1.5, 1, :kind, :name, CAST(:result AS jsonb))"
            connection.execute(text(sql), {"job": done, "name": name, "kind": kind, "result": result})
    forked = int(output("fork", str(done), "--from-step", "book", url=url))
    shown = output("show", str(forked), url=url)
    assert re.search(r"steps\n  label  .* took 1.5 s .*postgresql://me:\*\*\*@db/shop.*\n  sleep  \(sleep\)", shown)
    assert "book" not in shown
    steps = as_json("show", str(done), "--json", url=url)["steps"]
    assert [(step["name"], step["took"], step["orphaned"], step["size"]) for step in steps] == [
        ("label", 1.5, False, None), ("sleep", 1.5, False, None), ("book", 1.5, False, None)
    ]  # fmt: skip
    assert as_json("why", str(done), "--json", url=url)["steps"] == ["label", "sleep", "book"]
    assert "recorded steps: label, sleep, book" in output("why", str(done), url=url)
    assert refused("fork", str(done), "--from-step", "bok", url=url).endswith(
        f"job {done} has no step 'bok', but label, sleep, book\n"
    )


def test_copy_enqueues_jobs_once_more(engine: Engine, url: str) -> None:
    """Whatever became of them, and prints the ids."""
    with engine.begin() as connection:
        done = make_job(connection, "completed", args={"order_id": 7})
    copied = int(output("copy", str(done), url=url))
    with engine.begin() as connection:
        assert (row(connection, copied).args, row(connection, copied).status) == ({"order_id": 7}, "queued")
    missing = invoke("copy", str(done), "4711", "--json", url=url)
    assert (missing.exit_code, [one["duplicate_of"] for one in json.loads(missing.stdout)]) == (1, [None])


def test_prune_counts_ages_from_the_end(engine: Engine, url: str) -> None:
    """A job that waited for a month and ended today is not old."""
    with engine.begin() as connection:
        today = make_job(connection, "completed", created_at=timedelta(days=-40), finished_at=timedelta(hours=-1))
        make_job(connection, "completed", created_at=timedelta(days=-40), finished_at=timedelta(days=-39))
    assert output("prune", "--older-than", "30d", url=url) == "pruned 1 job\n"
    assert now(engine) == {today: "completed"}


def test_prune_takes_any_number(engine: Engine, url: str) -> None:
    """An INSERT by hand may have given a job an id below 1."""
    with engine.begin() as connection:
        ids = [make_job(connection, "completed", id=id) for id in (-(2**63), -5, 0, 3)]
    assert output("prune", "--", *map(str, ids[:3]), url=url) == "pruned 3 jobs\n"
    assert now(engine) == {3: "completed"}


def test_prune_expired_deletes_what_workers_would(engine: Engine, url: str) -> None:
    """Jobs whose retention is over; all others stay."""
    with engine.begin() as connection:
        kept = make_job(connection, "completed")
        make_job(connection, "failed", purge_at=timedelta(seconds=-1))
    assert as_json("prune", "--expired", "--dry-run", url=url)["count"] == 1
    assert "--all and --expired contradict each other" in refused("prune", "--expired", "--all", url=url)
    assert output("prune", "--expired", url=url) == "pruned 1 job\n"
    assert now(engine) == {kept: "completed"}


def test_prune_goes_around_jobs_that_are_referred_to(engine: Engine, url: str) -> None:
    """In pages; a row that a foreign key of the application's needs stays, its neighbours go."""
    with engine.begin() as connection:
        users_table(connection)
        first, *_, middle, last = make_jobs(connection, 30, "completed")
        connection.execute(
            text(
                "INSERT INTO sa_jobqueue.job (task, status, finished_at) SELECT 'a', 'completed', now() FROM generate_series(1, 2500)"
            )
        )
        for one in (first, middle, last):
            refer(connection, one)
    result = invoke("prune", "--all", url=url)
    assert (result.exit_code, result.stdout) == (0, "pruned 2,527 jobs\n")
    assert notes(result) == f"3 jobs kept, because other rows refer to them: {first}, {middle}, {last}\n"
    assert now(engine) == dict.fromkeys((first, middle, last), "completed")


def test_retry_says_who_holds_the_key_of_a_unique_job(engine: Engine, url: str) -> None:
    """The job is left as it is, and the exit code tells."""
    with engine.begin() as connection:
        holder = make_job(connection, uniqueness={"key": "k"})
        duplicate = make_job(connection, uniqueness={"key": "k"})
    result = invoke("retry", str(duplicate), url=url)
    assert result.exit_code == 1
    assert f"{duplicate} (cancelled, its unique key is held by job {holder})" in result.stderr
    assert now(engine) == {holder: "queued", duplicate: "cancelled"}


@pytest.mark.parametrize("verb", ["retry", "cancel", "discard"])
def test_locked_jobs_can_be_skipped_or_refused(engine: Engine, url: str, verb: str) -> None:
    """Those that were left are named; with `nowait` nothing is changed."""
    with engine.begin() as connection:
        first, locked = (make_job(connection, "queued", queue="mail") for _ in range(2))
    with engine.begin() as other:
        other.execute(text("SELECT FROM sa_jobqueue.job WHERE id = :id FOR UPDATE"), {"id": locked})
        chosen = ("--queue", "mail", *(["--status", "queued"] if verb == "retry" else []))
        said = refused(verb, *chosen, "--locked", "nowait", url=url)
        assert "another transaction has locked one of these jobs; nothing was changed. --locked skip leaves" in said
        assert set(now(engine).values()) == {"queued"}
        result = invoke(verb, *chosen, "--locked", "skip", url=url)
        assert result.exit_code == 1
        assert f"not touched: {locked} (locked by another transaction, or changed just now)" in result.stderr
        assert " 1 job" in result.stdout
    assert now(engine)[locked] == "queued"
    assert (now(engine)[first] == "queued") == (verb == "retry")
