"""The glossary has the nouns and verbs of the public names."""

from __future__ import annotations

import re

import pytest

import sa_jobqueue
from sa_jobqueue import statements
from sa_jobqueue.rules.lifecycle import Event
from tests.support.commands import ROOT

PAGE = ROOT / "docs" / "glossary.md"
#: Words that mean here what they mean everywhere.
PLAIN = {
    "action",
    "add",
    "apply",
    "async",
    "copy",
    "count",
    "criteria",
    "edit",
    "error",
    "every",
    "expired",
    "explain",
    "for",
    "insert",
    "list",
    "many",
    "name",
    "of",
    "on",
    "policy",
    "read",
    "record",
    "relationship",
    "remove",
    "revision",
    "select",
    "send",
    "set",
    "setting",
    "sql",
    "sum",
    "url",
    "version",
    "waiting",
    "why",
}
#: What the events are called in the glossary, where that is another word.
SAME = {"complete": "outcome", "fail": "outcome", "unblock": "event", "open": "gate node"}

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the wheel is tested without docs/")


def entries() -> list[str]:
    return re.findall(r"^([a-z][\w -]*)\n  \S", PAGE.read_text().partition("```{glossary}\n")[2], re.MULTILINE)


def words(name: str) -> set[str]:
    """`JobContext` and `job_context` are two words; a plural is its singular."""
    parts = re.findall(r"[A-Z]?[a-z]+", name.replace("__", ""))
    return {part if part == "status" else re.sub(r"(?<=[^s])s$", "", part) for part in map(str.lower, parts)}


def test_the_entries_are_in_order() -> None:
    """The glossary is sorted by its words."""
    assert entries() == sorted(entries())


def test_each_word_of_a_public_name_is_in_the_glossary() -> None:
    """Of what `sa_jobqueue` and `sa_jobqueue.statements` export."""
    names = {*sa_jobqueue.__all__, *statements.__all__} - {"statements", "errors", "default_registry"}
    said = {word for name in names for word in words(name)} - PLAIN
    assert sorted(said - set(entries())) == []


def test_each_event_is_in_the_glossary() -> None:
    """By its own name, or by what it is one of."""
    assert [event.value for event in Event if SAME.get(event.value, event.value) not in entries()] == []
