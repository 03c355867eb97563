"""The SQL of every builder, as text; `golden_cases` writes the files."""

from __future__ import annotations

import re

import pytest
import sqlalchemy
from sqlalchemy import ClauseElement

from sa_jobqueue import statements
from sa_jobqueue.lifecycle import JobStatus
from tests.statements.golden_cases import BATCHES, FOLDER, all_cases, compiled, laid_out

CASES = dict(all_cases())


def skip_if_uncached(statement: object) -> None:
    """Skip the test where SQLAlchemy itself has no cache key for such a statement."""
    if sqlalchemy.__version__.startswith("2.0.") and "ON CONFLICT" in compiled(statement):
        pytest.skip("SQLAlchemy 2.0 caches no INSERT with ON CONFLICT")


@pytest.mark.parametrize("name", CASES)
def test_the_statement_is_the_one_on_file(name: str) -> None:
    """A change of SQL is seen in review. `python -m tests.statements.golden_cases` writes the files again."""
    assert laid_out(compiled(CASES[name])) == (FOLDER / f"{name}.sql").read_text()


def test_every_builder_is_on_file_and_nothing_else() -> None:
    """A new builder comes with its text."""
    assert {path.stem for path in FOLDER.glob("*.sql")} == set(CASES)
    assert set(statements.__all__) - {"criteria_of"} <= set(CASES)  # that is what others are given


@pytest.mark.parametrize("name", BATCHES)
def test_the_text_and_the_cache_key_do_not_grow_with_the_batch(name: str) -> None:
    """One prepared statement and one entry in SQLAlchemy's cache for all sizes, none among them."""
    built = [BATCHES[name](size) for size in (0, 1, 2, 500)]
    assert len({compiled(one) for one in built}) == 1
    skip_if_uncached(built[0])

    keys = [one._generate_cache_key() for one in built if isinstance(one, ClauseElement)]
    assert len(keys) == 4
    assert all(key is not None for key in keys)
    assert len({key.key for key in keys if key is not None}) == 1


@pytest.mark.parametrize("name", CASES)
def test_the_statement_has_a_cache_key(name: str) -> None:
    """Without one, Core would compile it at each execution."""
    statement = CASES[name]
    skip_if_uncached(statement)
    assert isinstance(statement, ClauseElement)
    assert statement._generate_cache_key() is not None


@pytest.mark.parametrize("name", CASES)
def test_statuses_are_literals(name: str) -> None:
    """A parameter cannot be proved to imply the predicate of a partial index; arrays of changes are data."""
    statement = CASES[name]
    assert isinstance(statement, ClauseElement)
    parameters = statement.compile().params
    text = " ".join(compiled(statement).split())

    assert not [key for key, value in parameters.items() if isinstance(value, str) and value in set(JobStatus)]
    assert not re.findall(r"job\.status (?:=|!=|<>|IN|= ANY) ?\(?%\(", text)
    assert not re.findall(r"status=%\(", text)


@pytest.mark.parametrize("name", CASES)
def test_the_files_hold_the_whole_statement(name: str) -> None:
    """The layout moves white space, nothing else."""

    def without_space(text: str) -> str:
        return re.sub(r"\s+", "", text)

    assert without_space((FOLDER / f"{name}.sql").read_text()) == without_space(compiled(CASES[name]))
