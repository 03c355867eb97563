"""Sentences of the docs that say what is not there: none outlives the page that contradicts it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import ROOT

DOCS = ROOT / "docs"
CHOOSING = "docs/explanation/choosing-a-queue.md"

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the wheel is tested without docs/")

#: The words of a sentence that denies a feature, or puts it off.
DENIAL = re.compile(
    r"\b(?:in this (?:release|version)|today|so far|for now|planned|alpha software|on PyPI yet"
    r"|(?:is|are|was|were) not (?:tested|supported|implemented)|(?:do|does) not support|(?:is|are) no way to"
    r"|no (?:workflows|dashboard|rates|limits|schedules|cron|events|steps|signals|webhooks|archive|results|metrics))\b"
)  # fmt: skip
#: In the comparison's row of our own, a dash is one, too.
OURS = re.compile(r"(?<=\| )(?:–|no\b)")

RELEASE = ("CHANGELOG.md", r"^## \d")
STABLE = ("CHANGELOG.md", r"^## [1-9]")
MACOS = ("noxfile.py", "macos")

#: A page, its words, and what would contradict them: a file, and what stands in it.
DENIALS = [
    ("README.md", "The package is not on PyPI yet", *RELEASE),
    ("README.md", "This is alpha software", *STABLE),
    ("README.md", "It should run on macOS, but that is not tested", *MACOS),
    ("docs/index.md", "The package is not on PyPI yet", *RELEASE),
    ("docs/tutorial/set-up.md", "`sa_jobqueue` is not on PyPI yet", *RELEASE),
    ("docs/howto/deploy.md", "They should run on macOS, but that is not tested", *MACOS),
    (CHOOSING, "this is alpha software", *STABLE),
    (CHOOSING, "Fan-out: each message goes to many receivers", "docs/howto/relay.md", ""),
    (CHOOSING, "Replay: read last week's events again", "docs/howto/events.md", ""),
    (CHOOSING, "Many consumer groups, each with its own position", "docs/howto/events.md", ""),
]  # fmt: skip
#: What reads like a denial, and is about another tool, or a moment.
OTHERS = [
    (CHOOSING, "[cron; no workflows](https://github.com/janbjorge/pgqueuer"),
    ("docs/explanation/delivery-guarantees.md", "An outcome that the database refuses for now is not lost."),
    ("docs/explanation/measurements.md", "everything loaded so far stays"),
]


def pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from (path for path in sorted(DOCS.rglob("*.md")) if "decisions" not in path.parts)


def prose(text: str) -> str:
    """The page without its code, each run of white space as one blank."""
    return " ".join(re.sub(r"^(`{3,}).*?^\1$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL).split())


def denials(page: str, text: str) -> Iterator[re.Match[str]]:
    yield from DENIAL.finditer(text)
    if page == CHOOSING:
        start = text.index("| **sa_jobqueue** |")
        yield from OURS.finditer(text, start, text.index("| **Celery** |", start))


def test_each_sentence_that_denies_a_feature_is_known() -> None:
    """A new one gets a line in `DENIALS`, so that it goes with the page that makes it wrong."""
    known = [(page, words) for page, words, *_ in [*DENIALS, *OTHERS]]
    unknown = []
    for path in pages():
        page, text = str(path.relative_to(ROOT)), prose(path.read_text())
        spans = [(at := text.index(words), at + len(words)) for of, words in known if of == page]
        unknown += [
            f"{page}: …{text[max(found.start() - 60, 0) : found.end() + 60]}…"
            for found in denials(page, text)
            if not any(start <= found.start() and found.end() <= end for start, end in spans)
        ]
    assert unknown == []


@pytest.mark.parametrize(("page", "words", "file", "said"), DENIALS)
def test_no_page_contradicts_a_denial(page: str, words: str, file: str, said: str) -> None:
    """The page that says what there is came later than the sentence, which has to go."""
    there = (ROOT / file).exists() and re.search(said, (ROOT / file).read_text(), re.MULTILINE)
    assert not there, f"{page} says {words!r}, and {file} says the contrary"
