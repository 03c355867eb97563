"""Two releases side by side: a worker of the previous one goes on while the next one's schema is there.

For each version of the schema but the newest, the worker is built from the last code that was made for it, out of this
repository's history. For the newest there is no next version yet, so one is made up here: it adds, as a next one may.
"""

from __future__ import annotations

import io
import re
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
from sqlalchemy import Engine, func, insert, select, text

from sa_jobqueue.migrations import CURRENT, VERSIONS, current_version, steps, upgrade_database
from sa_jobqueue.rules.lifecycle import JobStatus
from tests.support.cli import invoke, refused
from tests.support.commands import PACKAGE, ROOT, Command, start_command
from tests.support.factory import TABLE
from tests.support.waiting import wait_until

#: What a next version may always do: add what no writer has to fill in.
NEXT = SimpleNamespace(
    COMPATIBLE_WITH=VERSIONS[CURRENT].COMPATIBLE_WITH,
    UP=(
        "ALTER TABLE {schema}.job ADD COLUMN shard integer",
        "ALTER TABLE {schema}.worker ADD COLUMN zone text NOT NULL DEFAULT ''",
        "CREATE INDEX job_shard_idx ON {schema}.job (shard, run_at) WHERE status = 'queued'",
    ),
    BUILT_ALONE={},
    DOWN=(),
)

#: One handler of each kind, each way of writing an outcome, and the application's own writes.
APPLICATION = """
import sa_jobqueue
from sqlalchemy import text
from sa_jobqueue import AsyncJobContext, JobContext, Registry, RetryPolicy, Snooze, task

registry = Registry()
print("package from", sa_jobqueue.__file__)

@task(registry=registry, name="writes", record=True, retry=RetryPolicy(base=0))
def writes(ctx: JobContext) -> int:
    ctx.session.execute(text("INSERT INTO public.effect VALUES (:id)"), {"id": ctx.job_id})
    if ctx.attempt == 1:
        raise ValueError("once")
    return ctx.job_id

@task(registry=registry, name="snoozes")
async def snoozes(ctx: AsyncJobContext):
    seen = await ctx.session.scalar(text("SELECT count(*) FROM public.effect WHERE job_id = :id"), {"id": ctx.job_id})
    if seen:
        return None
    await ctx.session.execute(text("INSERT INTO public.effect VALUES (:id)"), {"id": ctx.job_id})
    return Snooze(0)

@task(registry=registry, name="leaves", retain=0)
async def leaves() -> None: ...
"""


def code_for(version: int, into: Path) -> Path:
    """A folder with the package as it was when `version` was the newest; skips where the history is not there."""
    if version == CURRENT:
        return PACKAGE
    changed = ["log", f"-SCURRENT: Final = {version + 1}\n", "--format=%H", "--reverse", "--", "sa_jobqueue/migrations/steps.py"]  # fmt: skip
    commits = git(*changed)
    if not commits:
        pytest.skip(f"the history that has the code for version {version} is not here")
    archive = git("archive", f"{commits.split()[0].decode()}^", "sa_jobqueue")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(into, filter="data")
    return into


def git(*arguments: str) -> bytes:
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return b""


@contextmanager
def worker(code: Path, folder: Path, url: str) -> Iterator[Command]:
    arguments = ("work", "--app", "application:registry", "--queue", "default=4", "--lease", "5", "--log-level", "info")
    with start_command(*arguments, url=url, env={"PYTHONPATH": f"{code}:{folder}"}, cwd=folder) as started:
        started.wait_for(f"package from {code}")
        yield started
        started.send(signal.SIGTERM)
        assert started.wait() == 0
        # The failures that the handlers make are there, and nothing else went wrong.
        assert "Traceback" not in started.output
        assert not re.search(r"\b(ERROR|CRITICAL)\b", started.output), started.output


def give_work(engine: Engine) -> None:
    with engine.begin() as connection:
        for task in ("writes", "snoozes", "leaves"):
            connection.execute(insert(TABLE), [{"task": task}] * 5)


def all_done(engine: Engine, jobs: int) -> bool:
    """What stays is completed, and every effect is there once."""
    with engine.connect() as connection:
        done = connection.scalar(select(func.count()).where(TABLE.c.status == JobStatus.COMPLETED))
        left = connection.scalar(select(func.count()).where(TABLE.c.status != JobStatus.COMPLETED))
        effects = connection.execute(text("SELECT count(*), count(DISTINCT job_id) FROM public.effect")).one()
    return (done, left, tuple(effects)) == (jobs, 0, (jobs, jobs))


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The migrations know one version more than this release's worker."""
    monkeypatch.setattr(steps, "VERSIONS", MappingProxyType({**VERSIONS, CURRENT + 1: NEXT}))
    monkeypatch.setattr(steps, "CURRENT", CURRENT + 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "application.py").write_text(APPLICATION)
    return tmp_path


@pytest.mark.parametrize("version", range(1, CURRENT + 1))
def test_a_worker_goes_on_when_the_next_versions_schema_comes(
    empty_engine: Engine, empty_database_url: str, folder: Path, next_version: None, version: int
) -> None:
    """The migration runs while it works; it works on, and so does one of the same release that starts afterwards."""
    url, code = empty_database_url, code_for(version, folder)
    upgrade_database(url, to=version)
    with empty_engine.begin() as connection:
        connection.execute(text("CREATE TABLE public.effect (job_id bigint)"))
    with worker(code, folder, url):
        give_work(empty_engine)
        wait_until(lambda: all_done(empty_engine, 10))

        assert upgrade_database(url, to=version + 1) == version + 1

        give_work(empty_engine)
        wait_until(lambda: all_done(empty_engine, 20))
    with worker(code, folder, url) as after:
        after.wait_for(f"has version {version + 1}; this release knows version {version}")
        give_work(empty_engine)
        wait_until(lambda: all_done(empty_engine, 30))


def test_a_worker_ends_when_the_schema_can_no_longer_be_worked_with(
    empty_engine: Engine, empty_database_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two versions later things may be taken away. A worker that starts then says what to do, in one line."""
    upgrade_database(empty_engine)
    with empty_engine.begin() as connection:
        connection.execute(
            text("INSERT INTO sa_jobqueue.schema_version (version, compatible_with) VALUES (:new, :oldest)"),
            {"new": CURRENT + 2, "oldest": CURRENT + 1},
        )
    monkeypatch.syspath_prepend(folder)
    advice = "can no longer work with: upgrade the package"
    begun = invoke("work", "--app", "application:registry", "--queue", "default=4", url=empty_database_url)
    assert (begun.exit_code, advice in begun.stderr) == (2, True)
    assert advice in refused("list", url=empty_database_url)
    checked = invoke("doctor", url=empty_database_url)
    assert checked.exit_code == 1
    assert all(part in checked.stdout for part in advice.split(": "))


def test_no_version_shuts_out_the_release_before_it() -> None:
    """Expand, then contract: a version works with the release of the one before it, and none takes that back."""
    oldest = [VERSIONS[version].COMPATIBLE_WITH for version in sorted(VERSIONS)]
    assert sorted(VERSIONS) == list(range(1, CURRENT + 1))
    assert oldest == sorted(oldest)
    assert all(1 <= one <= max(version - 1, 1) for version, one in zip(sorted(VERSIONS), oldest, strict=True))


def test_the_schema_says_which_releases_it_works_with(empty_engine: Engine, next_version: None) -> None:
    """It is in the table, where a release can read it that does not know the version."""
    upgrade_database(empty_engine, to=CURRENT + 1)
    with empty_engine.connect() as connection:
        found = connection.execute(text("SELECT version, compatible_with FROM sa_jobqueue.schema_version ORDER BY 1"))
        expected = {**VERSIONS, CURRENT + 1: NEXT}
        assert [tuple(row) for row in found] == [(n, expected[n].COMPATIBLE_WITH) for n in range(1, CURRENT + 2)]
        assert current_version(connection) == CURRENT + 1
