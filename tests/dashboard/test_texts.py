"""The texts of the pages, which stand where they are used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

import sa_jobqueue.dashboard
from sa_jobqueue.dashboard.actions import PageAction
from sa_jobqueue.dashboard.app import ACTIONS
from sa_jobqueue.dashboard.pages.schedules import MISSED, OVERLAP
from sa_jobqueue.dashboard.refusals import Refusal, What
from sa_jobqueue.models import Overlap
from sa_jobqueue.rules.schedules import Missed

PACKAGE = Path(sa_jobqueue.dashboard.__path__[0])

#: A number before a plural, as in `{n} jobs`, and what else does not fit a single thing.
PLURAL = re.compile(r"(?<!%)\} (?:[a-z]+ )?(?!(?:as|is|this|was)\b)[a-z]+s\b|\} of its|\{unit\} that (?!failed)")
#: Texts about a number that is never 1.
OF_MANY = frozenset((
    "audit.html } entries", "database.html } notices", "errors.html } failed jobs", "find.html } jobs", "overview.html } failed jobs", "queues.html } minutes",
    "queues.html } queues", "workflow.html } boxes", "workflow.html } jobs", "workflows.html } jobs", "workflows.html } workflows",
    "query.py } bytes", "query.py } characters", "query.py } values", "render.py } characters", "tasks.html } minutes", "work.html } completed jobs",
    "schedules.py } slots",
))  # fmt: skip


def test_a_text_is_good_english_of_one_thing_too() -> None:
    """`{n} jobs` and `{n} jobs that wait` are not, if there may be one."""
    files = [*PACKAGE.rglob("*.html"), *PACKAGE.rglob("*.py")]
    found = {f"{path.name} {match[0]}" for path in files for match in PLURAL.finditer(path.read_text())}
    assert found == OF_MANY


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_the_texts_of_an_action_can_be_filled_in(action: PageAction) -> None:
    """With how many, and what it was done to; without what a browser would take for markup."""
    for text in (action.label, action.done, *action.variants.values()):
        filled = text.format(n="7 jobs", of="mail")
        assert filled.strip()
        assert "<" not in filled
    question = action.question.format(n="7", unit="jobs", of="nightly (7)")
    assert bool(question) == (action.count is not None)
    assert "<" not in question


def test_each_refusal_and_each_choice_of_a_schedule_has_its_words() -> None:
    assert all(Refusal(what).words for what in get_args(What))
    assert (MISSED.keys(), OVERLAP.keys()) == (set(get_args(Missed)), set(get_args(Overlap)))
