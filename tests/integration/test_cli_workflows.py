"""`workflow list`, `show`, `cancel`, `retry`, `pause`, `resume`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from sqlalchemy import Connection, Engine

from tests.support.cli import as_json, invoke, notes, output
from tests.support.workflows import Flow


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection


def test_show_draws_a_tree(connection: Connection, url: str) -> None:
    """Each job below the last one that it waits for; what failed says why; many alike are one line."""
    flow = Flow(connection, "a", "b", "c: a b", *(f"d{n}: c" for n in range(7)), "e: c", "f: e")
    flow.fail("a")
    said = output("workflow", "show", str(flow.id), url=url)
    ids = {name: node.job_id for name, node in flow.nodes.items()}
    cancelled = f"it depends on job {ids['a']}, which did not complete"
    assert said.splitlines() == [
        f"workflow {flow.id} flow: running",
        "1 queued, 1 failed, 10 cancelled",
        f"├─ {ids['a']} a_task failed: on purpose",
        f"└─ {ids['b']} a_task queued",
        f"   └─ {ids['c']} a_task cancelled (also behind {ids['a']}): {cancelled}",
        f"      ├─ a_task × 7 cancelled (from job {ids['d0']} on)",
        f"      └─ {ids['e']} a_task cancelled: {cancelled}",
        f"         └─ {ids['f']} a_task cancelled: {cancelled}",
        "on success: on_success (not yet)",
        "on failure: on_failure (enqueued)",
        "on end: on_end (not yet)",
    ]
    found = as_json("workflow", "show", str(flow.id), url=url)
    assert [node["status"] for node in found["nodes"]][:3] == ["failed", "queued", "cancelled"]
    assert found["nodes"][2]["parents"] == [ids["a"], ids["b"]]
    assert [one["event"] for one in found["callbacks"]] == ["success", "failure", "end"]


def test_a_long_chain_and_a_wide_join_are_shown(connection: Connection, url: str) -> None:
    """Deeper than Python's stack, with numbers in place of deep indents, and in place of the names of all parents."""
    names = [f"a{n}" for n in range(1_200)]
    chain = Flow(connection, names[0], *(f"{one}: {before}" for before, one in pairwise(names)))
    lines = output("workflow", "show", str(chain.id), url=url).splitlines()
    assert len(lines) == 1_200 + 5
    assert max(map(len, lines)) < 120
    assert any(line.endswith(f"└─ [1,200] {chain.job('a1199')} a_task blocked") for line in lines)
    wide = Flow(connection, *(f"b{n}" for n in range(9)), "c: " + " ".join(f"b{n}" for n in range(9)))
    assert "blocked (of 9; waits for " in output("workflow", "show", str(wide.id), url=url)


def test_list_shows_the_newest_first(connection: Connection, url: str) -> None:
    """With their jobs by status; of one status or name, if that is asked for."""
    one, two = Flow(connection, "a", "b: a"), Flow(connection, "a")
    two.complete("a")
    lines = output("workflow", "list", url=url).splitlines()
    assert [line.split()[0] for line in lines] == ["ID", str(two.id), str(one.id)]
    assert "1 queued, 1 blocked" in lines[2]
    assert [row["id"] for row in as_json("workflow", "list", "--status", "completed", url=url)] == [two.id]
    assert as_json("workflow", "list", "--status", "paused", url=url) == []
    output("workflow", "pause", str(one.id), url=url)
    assert [row["id"] for row in as_json("workflow", "list", "--status", "paused", url=url)] == [one.id]
    assert as_json("workflow", "list", "--name", "other", url=url) == []
    assert "no such workflows" in notes(invoke("workflow", "list", "--name", "other", url=url))
    refused = invoke("workflow", "list", "--status", "blocked", url=url)
    assert refused.exit_code != 0
    assert "running" in refused.stderr


def test_commands_act_on_workflows(connection: Connection, url: str) -> None:
    """And say which they left."""
    flow = Flow(connection, "a", "b: a")
    id = str(flow.id)
    assert output("workflow", "pause", id, url=url) == f"workflow {id} paused\n"
    assert "has ended, is paused, or does not exist" in notes(invoke("workflow", "pause", id, url=url))
    assert as_json("workflow", "resume", id, url=url) == {"resumed": [flow.id]}
    assert "is not paused" in notes(invoke("workflow", "resume", id, url=url))
    assert output("workflow", "cancel", id, "--reason", "no more", url=url) == f"workflow {id} cancelled\n"
    flow.settle()
    assert "no more" in output("workflow", "list", url=url)
    assert output("workflow", "retry", id, url=url) == "2 jobs retried\n"
    assert "0 jobs retried" in output("workflow", "retry", id, "--from", str(flow.job("a")), url=url)
    flow.settle()
    assert flow.statuses() == {"a": "queued", "b": "blocked"}


def test_retry_of_a_failed_member_brings_back_what_was_cancelled_because_of_it(
    connection: Connection, url: str
) -> None:
    """Only that: what another failure holds stays cancelled, and `why` names the retry that brings it back."""
    flow = Flow(connection, "a", "b", "c: a", "d: b", "e: c")
    flow.fail("a", "b")
    flow.settle()
    said = invoke("retry", str(flow.job("a")), url=url)
    assert said.stdout == "retried 1 job\n"
    assert "and 2 jobs that had been cancelled because of them" in notes(said)
    flow.settle()
    assert flow.statuses() == {"a": "queued", "b": "failed", "c": "blocked", "d": "cancelled", "e": "blocked"}
    assert f"→ sa-jobqueue workflow retry {flow.id}" in invoke("why", str(flow.job("d")), url=url).stdout
    assert as_json("retry", str(flow.job("b")), url=url)["also_retried"] == [flow.job("d")]


def test_retry_of_the_member_that_failed_first_brings_back_a_workflow_that_fails_fast(
    connection: Connection, url: str
) -> None:
    """All of it was cancelled because of that member."""
    flow = Flow(connection, "a", "b", "c: b", fail_fast=True)
    flow.fail("a")
    flow.settle()
    assert flow.statuses() == {"a": "failed", "b": "cancelled", "c": "cancelled"}
    invoke("retry", str(flow.job("a")), url=url)
    flow.settle()
    assert flow.statuses() == {"a": "queued", "b": "queued", "c": "blocked"}


def test_a_workflow_that_is_not_there_is_said(connection: Connection, url: str) -> None:
    """With where to look."""
    for command in ("show", "retry"):
        result = invoke("workflow", command, "7", url=url)
        assert result.exit_code == 1
        assert "there is no workflow 7" in result.stderr


def test_what_was_not_called_back_at_the_end_is_said(connection: Connection, url: str) -> None:
    """It does not come any more."""
    flow = Flow(connection, "a")
    flow.complete("a")
    assert output("workflow", "show", str(flow.id), url=url).splitlines()[-3:] == [
        "on success: on_success (enqueued)",
        "on failure: on_failure (not enqueued)",
        "on end: on_end (enqueued)",
    ]
    assert "job 9 has not failed" in notes(invoke("workflow", "retry", str(flow.id), "--from", "9", url=url))


def test_show_says_how_a_job_joins_and_for_what_it_waits(connection: Connection, url: str) -> None:
    """Where it does not need all of its parents; and where the tree does not show for which of them it waits."""
    flow = Flow(connection, "a", "b", "c", "d: 2/a,b,c", "e: 1/a,b", "f: a b", "g: a 1/b,c", "h: ~a", "i: ~a b", "j: a")
    ids = {name: node.job_id for name, node in flow.nodes.items()}
    a, b = ids["a"], ids["b"]

    def lines() -> dict[str, str]:
        said = output("workflow", "show", str(flow.id), url=url, env={"COLUMNS": "200"}).splitlines()
        found = {line.lstrip("│├└─ ").split(" ", 1)[0]: line for line in said}
        return {name: found[str(id)].split(" a_task ")[1] for name, id in ids.items()}

    assert lines() == {
        "a": "queued", "b": "queued", "c": "queued",
        "d": f"blocked (at least 2 of 3; also behind {a}, {b}; 0 completed)",
        "e": f"blocked (any of 2; also behind {a}; 0 completed)",
        "f": f"blocked (also behind {a}; waits for {a})",
        "g": f"blocked (any of 2; also behind {a}, {b}; waits for {a})",
        "h": "blocked (settled)",
        "i": f"blocked (settled: {a}; also behind {a}; waits for {a})",
        "j": "blocked",
    }  # fmt: skip
    flow.complete("a")
    now = lines()
    assert now["d"] == f"blocked (at least 2 of 3; also behind {a}, {b}; 1 completed)"
    assert now["e"] == f"queued (any of 2; also behind {a})"
    assert now["f"] == f"blocked (also behind {a}; waits for {b})"
    assert now["g"] == f"blocked (any of 2; also behind {a}, {b}; 0 completed)"
    found = as_json("workflow", "show", str(flow.id), url=url)["nodes"]
    assert [(one["needed"], one["policies"]) for one in found[3:7]] == [
        (2, ["count"] * 3), (1, ["count"] * 2), (None, ["cancel"] * 2), (1, ["cancel", "count", "count"]),
    ]  # fmt: skip


def test_jobs_that_join_alike_are_one_line(connection: Connection, url: str) -> None:
    """Others are not among them; and while the workflow is paused it does not say of each that it is to be looked at."""
    names = [f"a{n}" for n in range(8)]
    flow = Flow(
        connection,
        *names,
        *(f"b{n}: 1/{','.join(names)}" for n in range(6)),
        *(f"c{n}: ~{' ~'.join(names)}" for n in range(7)),
        f"d: {' '.join(names)}",
    )
    first = {name: flow.job(name) for name in ("a0", "a7", "b0", "c0", "d")}
    assert output("workflow", "show", str(flow.id), url=url).splitlines()[2:7] == [
        f"├─ a_task × 7 queued (from job {first['a0']} on)",
        f"└─ {first['a7']} a_task queued",
        f"   ├─ a_task × 6 blocked (any of 8; from job {first['b0']} on)",
        f"   ├─ a_task × 7 blocked (settled; from job {first['c0']} on)",
        f"   └─ {first['d']} a_task blocked (of 8; waits for {first['a0']})",
    ]
    output("workflow", "pause", str(flow.id), url=url)
    assert f"└─ {first['a7']} a_task blocked\n" in output("workflow", "show", str(flow.id), url=url)
    output("workflow", "resume", str(flow.id), url=url)
    assert f"└─ {first['a7']} a_task blocked (waits for a worker)\n" in output(
        "workflow", "show", str(flow.id), url=url
    )
    flow.settle()
    assert f"└─ {first['a7']} a_task queued\n" in output("workflow", "show", str(flow.id), url=url)
