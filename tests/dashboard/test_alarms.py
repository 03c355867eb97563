"""What leads on from a finding of the doctor: its cause, its cure, its command; and who has acknowledged it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, select, text

from sa_jobqueue.dashboard import Access
from sa_jobqueue.dashboard.pages import database
from sa_jobqueue.doctor import CHECKS, Finding
from sa_jobqueue.models import AuditEntry, Job
from tests.support.browsing import Seen, Viewer

FINDING = Finding(
    "queues", "problem", "due jobs that no live worker serves: mail (3)", "`sa-jobqueue work --queue NAME`"
)


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as made:
        yield made


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What the doctor finds: a test may change it."""
    findings = [FINDING]
    monkeypatch.setattr(database, "look_at", lambda *_, **__: iter(findings))
    monkeypatch.setattr(database._kept, "_seconds", 0.0)
    return findings


def form(page: Seen, action: str) -> dict[str, Any]:
    """The hidden fields of the first form for this action, and its address."""
    return {
        str(field["name"]): field["value"]
        for field in Seen(page.html.partition(f'"/act/{action}"')[2].partition("</form>")[0]).all(
            "input", type="hidden"
        )
    }


def state(engine: Engine) -> tuple[int, bool, bool]:
    """The number of problems that count, and whether the overview has the two buttons."""
    viewer = Viewer(engine)
    page = viewer.see("/")
    forms = ("acknowledge", "unacknowledge")
    problems = viewer.get("/status").json()["problems"]
    return (problems, *(bool(page.all("form", action=f"/act/{name}")) for name in forms))


def test_a_finding_is_acknowledged_until_a_time_or_until_it_gets_worse(
    engine: Engine, connection: Connection, found: list[Finding]
) -> None:
    """Until then it does not count. Another number is not worse; another subject and a higher level are."""
    viewer = Viewer(engine, Access.OPERATE.named("ada <b>"))
    sent = form(viewer.see("/"), "acknowledge")
    assert state(engine) == (1, True, False)
    assert "Acknowledged queues: it does not count" in viewer.do("acknowledge", **sent, **{"for": "8h"}).text
    assert state(engine) == (0, False, True)
    for path in ("/", "/database"):
        assert "Acknowledged by ada <b>, until" in viewer.see(path).text
    worse = {
        "due jobs that no live worker serves: mail (10,000+)": False, "due jobs that no live worker serves: mail-2 (3)": True,
        "due jobs that no live worker serves: mail (3), sync (1)": True,
    }  # fmt: skip
    for detail, is_worse in worse.items():
        found[:] = [Finding("queues", "problem", detail)]
        assert state(engine)[0] == is_worse
        assert (
            "but it got worse: it was “due jobs that no live worker serves: mail (3)" in viewer.see("/").text
        ) == is_worse
    found[:] = [FINDING]
    (entry,) = connection.execute(select(AuditEntry.action, AuditEntry.who, AuditEntry.target)).all()
    assert entry == (
        "acknowledge", "ada <b>", {"check": ["queues"], "for": ["8h"], "level": ["problem"], "detail": [FINDING.detail]},
    )  # fmt: skip
    connection.execute(text("UPDATE sa_jobqueue.audit SET at = at - interval '8 hours'"))
    connection.commit()
    assert state(engine) == (1, True, False)
    viewer.do("acknowledge", **{**sent, "level": "notice", "for": "7d"})
    assert state(engine)[0] == 1


def test_an_acknowledgement_is_taken_back(engine: Engine, found: list[Finding]) -> None:
    viewer = Viewer(engine)
    viewer.do("acknowledge", **form(viewer.see("/database"), "acknowledge"), **{"for": "1h"})
    assert "It counts again: queues." in viewer.do("unacknowledge", **form(viewer.see("/"), "unacknowledge")).text
    assert state(engine) == (1, True, False)


@pytest.mark.parametrize("wrong", [{"check": "nothing"}, {"for": "9y"}, {"level": "ok"}, {"detail": "x" * 50_001}])
def test_what_is_no_finding_is_not_acknowledged(engine: Engine, wrong: dict[str, str]) -> None:
    fields = {"check": "queues", "for": "1h", "level": "problem", "detail": "x", **wrong}
    assert Viewer(engine).send("acknowledge", fields).status_code == 400


@pytest.mark.parametrize("rights", [{"queues": ["mail"]}, {"where": Job.queue == "mail"}])
def test_who_sees_some_jobs_acknowledges_nothing_and_is_not_told_who_did(
    engine: Engine, found: list[Finding], rights: dict[str, Any]
) -> None:
    """A mark concerns the jobs of all."""
    found[:] = [Finding("bloat", "problem", "job has 3 GB")]
    everyone = Viewer(engine, Access.ADMIN.named("ada"))
    sent = {**form(everyone.see("/"), "acknowledge"), "for": "1h"}
    everyone.do("acknowledge", **sent)
    viewer = Viewer(engine, Access(can=Access.ADMIN.can, **rights))
    for action in ("acknowledge", "unacknowledge"):
        assert viewer.send(action, sent).status_code == 404
    if "queues" in rights:
        page = viewer.see("/")
        assert ("job has 3 GB" in page.text, "ada" in page.text, "/act/" in page.html) == (True, False, False)


def test_each_finding_leads_to_its_cause_and_its_cure(engine: Engine, found: list[Finding]) -> None:
    """By links to pages that there are; with a button that copies the command; and to the things that it names, whatever they are called."""
    odd = "a/b?#<b>"
    about = [("queue", odd), ("task", odd), ("schedule", odd), ("workflow", "7")]
    found[:] = [Finding(check.name, "problem", "x", about=about) for check in CHECKS if check.name != "limits"]
    found.append(Finding("limits", "problem", "x", "`sa-jobqueue resume <b>`, see `queues`"))
    viewer = Viewer(engine)
    page = viewer.see("/database")
    rows = [
        Seen(part.partition("</tr>")[0]).links for part in page.html.partition('id="findings-title"')[2].split('<tr id="check-')[1:]
    ]  # fmt: skip
    assert len(rows) == len(CHECKS)
    assert all(rows)
    answers = {
        link: viewer.get(link.partition("#")[0]).status_code for link in {link for links in rows for link in links}
    }
    assert {link for link, status in answers.items() if status != 200} == {"/workflows/7"}
    assert f"queue {odd}" in page.text
    assert [button["data-copy"] for button in page.all("button") if "data-copy" in button] == ["sa-jobqueue resume <b>"]
    assert page.all("b") == []
