"""The audit in the dashboard: who did what, when, to how many."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, insert

from sa_jobqueue.dashboard import Access
from sa_jobqueue.models import AuditEntry, Job
from tests.support.browsing import Viewer


def note(
    engine: Engine, who: str = "ada", action: str = "retry", count: int = 1, target: Any = None, number: int = 1
) -> None:
    entry = {"who": who, "action": action, "count": count, "target": {"id": ["7"]} if target is None else target}
    with engine.begin() as connection:
        connection.execute(insert(AuditEntry), [entry] * number)


def test_each_entry_says_who_did_what_to_how_many(engine: Engine) -> None:
    note(engine, "ada", "retry", 1_412, {"status": ["failed"], "queue": ["mail"]})
    note(engine, "grace", "of_a_later_release", 2, {"id": [str(n) for n in range(30)], "more": 7})
    page = Viewer(engine).see("/audit")
    assert "ada retry 1,412 queue mail · status failed" in page.text
    assert "grace of a later release 2 id 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, … 20 · more 7" in page.text
    assert page.text.index("grace") < page.text.index("ada")


def test_a_target_of_another_shape_is_shown(engine: Engine) -> None:
    note(engine, target=["a list"])
    assert "a list" in Viewer(engine).see("/audit").text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"who": "ada"}, 3),
        ({"action": "cancel"}, 2),
        ({"who": "ada", "action": "cancel"}, 1),
        ({"who": "ad"}, 0),
        ({}, 4),
    ],
)
def test_entries_are_filtered(engine: Engine, query: dict[str, str], found: int) -> None:
    note(engine, "ada", "retry", number=2)
    note(engine, "ada", "cancel")
    note(engine, "grace", "cancel")
    page = Viewer(engine).see("/audit", **query)
    assert len([one for one in page.all("tr") if str(one.get("id")).startswith("audit-")]) == found


def test_entries_come_a_page_at_a_time(engine: Engine) -> None:
    note(engine, number=51)
    note(engine, "grace")
    viewer = Viewer(engine)
    (link,) = [found["href"] for found in viewer.see("/audit", who="ada").all("a", rel="next")]
    page = viewer.see(str(link))
    assert len([one for one in page.all("tr") if str(one.get("id")).startswith("audit-")]) == 1
    assert "who=ada" in str(link)


@pytest.mark.parametrize(
    "access",
    [Access(can=Access.ADMIN.can, queues=["mail"]), Access(can=Access.ADMIN.can, where=Job.queue == "mail")],
    ids=["queues", "where"],
)
def test_who_may_see_only_some_jobs_does_not_see_it(engine: Engine, access: Access) -> None:
    """It says what was done to those of others; there is no link to it."""
    note(engine)
    viewer = Viewer(engine, access)
    assert viewer.get("/audit").status_code == 403
    assert "/audit" not in viewer.see("/jobs").links
    assert "/audit" in Viewer(engine).see("/jobs").links
