"""The page of the race against other queues: what its writer puts there, and what it leaves alone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.benchmarks.peers.environments import requirements, too_old
from tests.benchmarks.peers.page import BEGIN, END, losses, section, write
from tests.benchmarks.peers.results import Row, figures, to_json
from tests.support.commands import ROOT


def row(peer: str, rate: float, *, way: str = "async", processes: int = 1, enqueued: float = 1_000.0) -> Row:
    """A result of three rounds, the median of which is `rate`."""
    handler = "sync" if way in {"sync", "threads"} else "async"
    rates, filled = [rate * 2, rate, rate / 2], [enqueued]
    return Row(peer, "postgresql", way, handler, processes, 10, "as usual", {"pkg": "1.0"}, "one call", rates, filled)


def results(*rows: Row) -> dict[str, object]:
    return to_json(list(rows), brokers={"postgresql": {"version": "18.0", "fsync": "on"}}, small=False)


def test_a_target_is_judged_by_the_peers_fastest_way() -> None:
    """The ratio is that of the medians, and a slower way of the same peer does not help us."""
    rows = [row("sa_jobqueue", 300), row("PgQueuer", 100, way="durable"), row("PgQueuer", 150, way="balanced")]
    (figure,) = figures(rows)
    assert (figure.ours, figure.reference, figure.ratio, figure.met) == (300, 150, 2.0, False)
    assert "PgQueuer, balanced" in figure.measure


def test_a_target_without_both_sides_is_not_judged() -> None:
    """Nothing is said of what was not measured."""
    assert figures([row("sa_jobqueue", 300)]) == []


def test_where_we_lose_is_said() -> None:
    """A missed target, a faster drain and a faster enqueue: each is a line."""
    rows = [row("sa_jobqueue", 100), row("PgQueuer", 110, way="durable", enqueued=2_000)]
    missed, drain, bulk = losses(rows)
    assert "0.91 times" in missed
    assert drain == "PgQueuer, durable drains faster: async no-op, 1 process."
    assert bulk == "PgQueuer enqueues faster in bulk."


def test_the_section_has_the_rates_and_what_they_were_measured_on() -> None:
    """Medians with their lowest and highest, the server's version and settings, versions and settings of the rows."""
    text = section(results(row("sa_jobqueue", 5_000), row("Slow", 10, way="threads")))  # type: ignore[arg-type]
    assert "| sa_jobqueue | 5,000 (2,500 – 10,000) |  | 10 |" in text
    assert "PostgreSQL 18.0: `fsync` on." in text
    assert "| Slow, threads | pkg 1.0 | as usual |" in text


def test_only_what_is_between_the_markers_is_written(tmp_path: Path) -> None:
    """Twice the same gives the same page."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    given = results(row("sa_jobqueue", 5_000))
    write(page, given)
    first = page.read_text()
    write(page, given)
    assert page.read_text() == first
    assert first.startswith(f"before\n{BEGIN}\n")
    assert first.endswith(f"{END}\nafter\n")
    assert "old" not in first


def test_a_page_without_the_markers_is_refused(tmp_path: Path) -> None:
    """And left as it is."""
    page = tmp_path / "page.md"
    page.write_text("nothing here\n")
    with pytest.raises(SystemExit, match="needs one line"):
        write(page, results(row("sa_jobqueue", 1)))
    assert page.read_text() == "nothing here\n"


def test_the_project_s_page_has_the_markers() -> None:
    """One pair of them."""
    page = ROOT / "docs" / "explanation" / "benchmarks.md"
    if not page.exists():
        pytest.skip("the wheel is tested without docs/")
    assert (page.read_text().count(BEGIN), page.read_text().count(END)) == (1, 1)


def test_a_result_survives_json() -> None:
    """What is read back is what was measured."""
    one = row("sa_jobqueue", 5_000)
    assert Row(**asdict(one)) == one


@pytest.mark.parametrize(
    "runner",
    ["on_pgqueuer", "on_procrastinate", "on_chancy", "on_celery", "on_dramatiq", "on_dbos", "on_awa", "on_oban"],
)
def test_a_runner_says_what_it_needs(runner: str) -> None:
    """In the inline metadata of its first lines; no release is pinned, the newest is meant."""
    wanted = requirements(runner)
    assert any(requirement.startswith(runner.removeprefix("on_")) for requirement in wanted)
    assert not any(sign in requirement for requirement in wanted for sign in "=<>~")


@pytest.mark.parametrize(("python", "wanted"), [("3.11.7", ">=3.12"), ("3.12.0", ""), ("3.15.0b1", "")])
def test_a_runner_that_needs_a_newer_python_says_which(python: str, wanted: str) -> None:
    """By the `requires-python` of its inline metadata; a runner without that line runs on every Python."""
    assert (too_old("on_oban", python), too_old("on_awa", python)) == (wanted, "")
