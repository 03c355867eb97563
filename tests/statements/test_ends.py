"""One end of a job: what the statements share, and the schema's own function `complete_job`, say the same."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import DBAPIError

from sa_jobqueue.migrations import v01
from sa_jobqueue.sql.complete import complete_job
from tests.statements.golden_cases import all_cases, compiled
from tests.support.factory import make_job, row

#: The function's parameter for each of the builder's.
_NUMBERS = {"done_id": "$1", "done_token": "$2", "done_retain": "$3", "done_result": "$4"}
#: The clock by which each end is timed: the two write at different moments.
_TIMES = ("finished_at", "purge_at")


def _parts(sql: str) -> tuple[dict[str, str], set[str]]:
    """What an UPDATE sets, by column, and its conditions."""
    sql = re.sub(r"%\((\w+)\)s(::\w+( PRECISION)?)?", lambda found: _NUMBERS[found[1]], sql)
    sql = sql.replace("CAST($4 AS JSONB)", "$4")
    sql = re.sub(r"\b(sa_jobqueue\.job|held)\.", "", " ".join(sql.split()))
    found = re.search(r"SET (.*) WHERE (.*?)(;| RETURNING|$)", sql)
    assert found is not None
    columns = (one.split("=", 1) for one in re.split(r",(?![^(]*\))", found[1]))
    wanted = {name.strip(): _bare(value) for name, value in columns}
    return wanted, set(map(_bare, found[2].split(" AND ")))


def _set_clauses(sql: str) -> str:
    """What the UPDATEs of a statement set."""
    return " ".join(re.findall(r"\bSET (.*?) WHERE ", " ".join(sql.split())))


def _bare(expression: str) -> str:
    expression = expression.strip().removesuffix(")") if expression.strip().startswith("(") else expression.strip()
    return expression.removeprefix("(").replace(" = ", "=")


@pytest.mark.parametrize("result", [None, "{}"])
def test_the_schemas_function_says_the_same_as_the_builder(result: str | None) -> None:
    """The same columns, set to the same, behind the same conditions. The function is frozen: a change of `ended()` or of
    `fence()` needs a new version of the schema.
    """
    functions = [one for one in v01.UP if "FUNCTION {schema}.complete_job" in one]
    function = functions[result is not None]
    columns, conditions = _parts(function[function.index("UPDATE {schema}.job") :])
    assert (columns, conditions) == _parts(compiled(complete_job(id=1, token=1, retain=60.0, result=result)))
    assert set(columns) == {"status", "lease_expires_at", "finished_at", "purge_at", "result"}
    assert conditions == {"id=$1", "claim_token=$2", "status='running'"}


#: The statements by which jobs end.
ENDING = sorted(
    name
    for name, statement in all_cases()
    if re.search(r"\bfinished_at ?= ?(?!NULL)", _set_clauses(compiled(statement)))
)


def test_each_statement_that_ends_jobs_tells_what_waits_for_them() -> None:
    """It reads the gate. The functions of the schema do so, too."""
    texts = {name: compiled(statement) for name, statement in all_cases() if name in ENDING}
    assert {"complete_jobs", "complete_job", "apply_changes", "cancel_jobs", "end_expired"} <= set(texts)
    assert [name for name, sql in texts.items() if "any_awaited()" not in sql] == []
    functions = [one for one in v01.UP if "finished_at = statement_timestamp()" in one]
    assert len(functions) == 4
    assert all("any_awaited()" in one for one in functions)


def _end_of(found: Row[Any]) -> dict[str, Any]:
    """A row. Of the times at its end only the differences are kept."""
    values = found._asdict()
    kept = None if values["purge_at"] is None else values["purge_at"] - values["finished_at"]
    return {name: value for name, value in values.items() if name not in {"id", *_TIMES}} | {"kept": kept}


@pytest.mark.parametrize("result", [None, '{"lines": [1, null]}', "null", '"it\'s"'])
@pytest.mark.parametrize("retain", [60.0, 0.5, None])
def test_the_schemas_function_does_the_same_as_the_builder(
    connection: Connection, retain: float | None, result: str | None
) -> None:
    """Two equal rows come out equal, with times after the beginning of the transaction."""
    one, two = (make_job(connection, "running", result={"old": 1}, attempt=3, rescues=2) for _ in range(2))
    began = connection.scalar(text("SELECT now()"))
    given = {"id": one, "retain": retain, "result": result}
    recorded = "" if result is None else ", CAST(:result AS jsonb)"
    function = text(f"SELECT sa_jobqueue.complete_job(:id, 1, CAST(:retain AS double precision){recorded})")
    connection.execute(function, given)
    connection.execute(complete_job(id=two, token=1, retain=retain, result=result))
    by_function, by_builder = row(connection, one), row(connection, two)
    assert _end_of(by_function) == _end_of(by_builder)
    assert (by_function.status, by_function.result) == ("completed", None if result is None else json.loads(result))
    assert _end_of(by_function)["kept"] == (None if retain is None else timedelta(seconds=retain))
    assert min(by_function.finished_at, by_builder.finished_at) > began


@pytest.mark.parametrize(("status", "token"), [("running", 2), ("running", None), ("completed", 1), ("queued", 1)])
def test_the_schemas_function_has_the_same_fence(connection: Connection, status: str, token: int | None) -> None:
    """A claim that is no longer valid completes nothing, by neither of the two."""
    one = make_job(connection, status, claim_token=token)
    before = row(connection, one)
    assert connection.execute(complete_job(id=one, token=1, retain=60.0)).all() == []
    with pytest.raises(DBAPIError, match="its claim was lost"), connection.begin_nested():
        connection.execute(text("SELECT sa_jobqueue.complete_job(:id, 1, 60)"), {"id": one})
    assert row(connection, one) == before
