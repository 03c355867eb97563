"""Each figure in the docs is what the code has as its default, and each link of README leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sa_jobqueue import RetryPolicy, WorkerSettings, task
from sa_jobqueue.arguments.storable import MAX_PAYLOAD
from sa_jobqueue.migrations import v01
from sa_jobqueue.rules.failures import MAX_ERRORS, MAX_MESSAGE, MAX_TRACEBACK
from sa_jobqueue.rules.lifecycle import Rules
from sa_jobqueue.tasks.options import Options
from sa_jobqueue.tasks.registry import Registry
from sa_jobqueue.util.schema import GATES
from sa_jobqueue.worker.claiming import claimer
from sa_jobqueue.worker.claiming import intake as unknown
from sa_jobqueue.worker.claiming import shortage as resume
from sa_jobqueue.worker.claiming import shortage as surveys
from sa_jobqueue.worker.claiming.poison import jobs as overlooked
from sa_jobqueue.worker.claiming.poison import skipped
from sa_jobqueue.worker.connections.engines import SERVICE_CONNECTIONS
from sa_jobqueue.worker.connections.service import service_settings
from tests.support.commands import ROOT

DOCS = ROOT / "docs"
SETTINGS, RULES, POLICY = WorkerSettings(), Rules(), RetryPolicy()
DAY = 86_400

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the wheel is tested without docs/")


@pytest.mark.parametrize(
    ("page", "sentence", "code", "said"),
    [
        ("explanation/leases.md", "for 60 seconds the job is this worker's", SETTINGS.lease, 60),
        ("explanation/leases.md", "After five rescues the job is `failed`", RULES.max_rescues, 5),
        ("explanation/leases.md", "After five rescues the job is `failed`", SETTINGS.max_rescues, 5),
        ("explanation/life-cycle.md", f"cut to {MAX_MESSAGE:,} characters", MAX_MESSAGE, 2_000),
        ("explanation/life-cycle.md", f"to its last {MAX_TRACEBACK:,}", MAX_TRACEBACK, 8_000),
        ("explanation/life-cycle.md", f"its latest {MAX_ERRORS} entries", MAX_ERRORS, 20),
        ("explanation/claiming.md", "not start within two seconds goes back", SETTINGS.hoard, 2),
        ("explanation/claiming.md", "after a second at most while jobs", overlooked._FIRST_PAUSE, 1),
        ("explanation/claiming.md", "after ten where none do", overlooked._LONGEST_PAUSE, 10),
        (
            "explanation/claiming.md",
            "a fifth of a second, later after up to half a minute",
            (skipped._FIRST, skipped._LONGEST),
            (0.2, 30),
        ),
        ("explanation/claiming.md", "skips at most 1,000 jobs", skipped.MOST, 1_000),
        ("explanation/waking.md", "down to once a second", SETTINGS.poll, 1),
        (
            "explanation/waking.md",
            "`poll` is from one to five seconds",
            (surveys._FIRST_SURVEY, surveys._LAST_SURVEY),
            (1, 5),
        ),
        ("explanation/waking.md", "every twelfth of the lease", surveys._PARTS_OF_LEASE, 12),
        ("explanation/decisions/006-gates-as-sequences.md", "Sixteen sequences", GATES, 16),
        ("explanation/decisions/007-sync-service-thread.md", "three connections per process", SERVICE_CONNECTIONS, 3),
        ("explanation/measurements.md", "1,000 per queue", SETTINGS.buffer, 1_000),
        ("explanation/measurements.md", "down to once a second", SETTINGS.poll, 1),
        ("explanation/measurements.md", "wait up to 5 milliseconds", claimer._GATHER, 0.005),
        ("explanation/measurements.md", "20 times what the last sweep took", resume._SHARE, 20),
        (
            "explanation/measurements.md",
            "at least 0.05 and at most 0.8",
            (resume._SOONEST, resume._LATEST),
            (0.05, 0.8),
        ),
        ("explanation/performance.md", "own three connections are apart", SERVICE_CONNECTIONS, 3),
        ("howto/deploy.md", "three connections for itself", SERVICE_CONNECTIONS, 3),
        ("howto/deploy.md", "(one minute by default)", SETTINGS.lease, 60),
        ("howto/deploy.md", "The grace time is 30 seconds", SETTINGS.grace, 30),
        ("howto/options.md", "The default is 4", Options().priority, 4),
        ("howto/options.md", "at most 1 MiB as JSON", MAX_PAYLOAD, 2**20),
        ("howto/options.md", "Arguments take at most 1 MiB as JSON", Registry().max_payload, MAX_PAYLOAD),
        ("howto/rename.md", "goes back to the queue for 15 seconds", SETTINGS.unknown_delay, 15),
        ("howto/rename.md", "up to 5 minutes", unknown._LONGEST, 300),
        ("howto/retention.md", "cancelled ones after 7 days", RULES.retain, 7 * DAY),
        ("howto/retention.md", "failed ones after 30", RULES.retain_failed, 30 * DAY),
        ("howto/retries.md", "it is 15 seconds, doubled each time", (POLICY.base, POLICY.factor), (15, 2)),
        ("howto/retries.md", "at most 6 hours", POLICY.cap, 6 * 3_600),
        ("howto/retries.md", "with ten attempts in all", Options().max_attempts, 10),
    ],
)
def test_a_figure_is_the_default(page: str, sentence: str, code: object, said: object) -> None:
    """The page says it, and the code has it."""
    assert sentence in " ".join((DOCS / page).read_text().split())
    assert code == said


def test_the_tables_settings_are_those_of_the_migration() -> None:
    """The page of measurements names each setting that the table comes with, and its value."""
    rows = re.findall(r"^\| (`.*?`) \| ([\d, ]+) \|", (DOCS / "explanation/measurements.md").read_text(), re.MULTILINE)
    named = [(re.findall(r"`(\w+)`", names), values.split(", ")) for names, values in rows]
    said = {
        name: int(value.replace(",", "")) for names, values in named for name, value in zip(names, values, strict=True)
    }
    ddl = (Path(v01.__file__).parent / "tables.sql").read_text()
    table = ddl.partition("CREATE TABLE {schema}.job (")[2].partition(") WITH (\n")[2].partition(")")[0]
    assert said == {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", table)}
    (of_index,) = re.findall(r"PRIMARY KEY \(id\) WITH \(fillfactor = (\d+)\)", ddl)
    page = " ".join((DOCS / "explanation/measurements.md").read_text().split())
    assert f"index of the primary key has a `fillfactor` of {of_index}." in page


def test_the_settings_for_workers_of_ones_own_are_those_of_the_worker() -> None:
    """The page on statements has each, with the value for its lease; only the name of the application is one's own."""
    page = (DOCS / "reference/statements.md").read_text()
    found: dict[str, Any] = {}
    exec("\n".join(re.findall(r"^[A-Z_]+ = .*", page, re.MULTILINE)), found)
    ours = service_settings(found["LEASE"])
    del ours["application_name"]
    assert {name: value.replace("10s", "10000ms") for name, value in found["SETTINGS"].items()} == ours


def test_a_failed_job_stays_at_least_thirty_days() -> None:
    """Whatever `retain` says; longer if `retain` is longer."""
    registry = Registry()
    soon = task(name="soon", retain=0, registry=registry)(lambda: None)
    late = task(name="late", retain=90 * DAY, registry=registry)(lambda: None)
    assert (soon.rules.retain_failed, late.rules.retain_failed) == (30 * DAY, 90 * DAY)


def test_the_sessions_of_nox_are_in_the_contributors_guide() -> None:
    """All of them, and no others; the demo is for users."""
    page, noxfile = ROOT / "CONTRIBUTING.md", ROOT / "noxfile.py"
    if not page.exists():
        pytest.skip("CONTRIBUTING.md is not in the wheel's tests")
    functions = re.findall(r"^@nox\.session.*\n(?:@nox\.parametrize.*\n)?def (\w+)", noxfile.read_text(), re.MULTILINE)
    sessions = {name.replace("_", "-") for name in functions}
    named = set(re.findall(r"nox -s ([\w-]+)", page.read_text()))
    assert named == sessions - {"demo"}
    for folder, word in re.findall(r"-- (tests/\S+) -k (\w+)", page.read_text()):
        assert any(
            re.search(rf"^def test_\w*{word}", path.read_text(), re.MULTILINE)
            for path in (ROOT / folder).iterdir()
            if path.suffix == ".py"
        ), f"{word} selects no test of {folder}"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name: str) -> None:
    """Those to files of this project; Sphinx checks the links between pages."""
    page = ROOT / name
    if not page.exists():
        pytest.skip(f"{name} is not in the wheel's tests")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    beside = {"CONTRIBUTING.md"} if not (ROOT / "CONTRIBUTING.md").exists() else set()
    assert [link for link in links if link not in beside and not (ROOT / link).exists()] == []
