"""The page of jobs whose handlers wait for the answer of a person, and the action that sends an answer."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from ...arguments.questions import Question, question_of
from ...errors import PayloadError
from ...models import status_in
from ...rules.lifecycle import JobStatus
from ...sql.steps import send_signal, waits_for_signals
from ..actions import Done, PageAction
from ..query import Query
from ..refusals import BadInput
from ..request import ONE, Missing, Page, PageContext

#: The most jobs on the page.
_PAGE = 100


def waiting(context: PageContext, *where: sa.ColumnElement[bool], most: int = _PAGE) -> list[dict[str, Any]]:
    """The jobs that wait for a signal that has not been sent, the longest wait first, with their questions."""
    wait, signal = context.tables.wait, context.tables.signal
    # OFFSET 0 makes the planner look up the signal of each job by the index.
    there = sa.select(ONE).where(signal.name == wait.signal, signal.expires_at > sa.func.now()).offset(0).exists()
    found = context.connection.execute(
        waits_for_signals(limit=most, job=context.job).where(*where, sa.not_(there), *context.mine())
    ).mappings()
    return [{**row, "question": question_of(row["question"])} for row in found]


def read_questions(context: PageContext) -> dict[str, Any]:
    """The values of the page: questions, or with `all=yes` all waits for signals."""
    wanted = [] if context.query.one("all") else [context.tables.wait.question.is_not(None)]
    waits = waiting(context, *wanted, most=_PAGE + 1)
    return {"now": context.now(), "waits": waits[:_PAGE], "more": len(waits) > _PAGE}


def _answer(context: PageContext) -> Done:
    """Send the signal for which a job waits, unless an answer was sent already. The lock on the job makes viewers answer one after the other."""
    query, job, tables = context.query, context.job, context.tables
    job_id = query.id("id")
    blocked = (job.id == job_id, status_in(job.status, (JobStatus.BLOCKED,)), *context.mine())
    if context.connection.scalar(sa.select(job.id).where(*blocked).with_for_update(key_share=True)) is None:
        raise Missing(f"There is no job {job_id} here that waits for an answer, or you may not see it.")
    found = waiting(context, tables.wait.job_id == job_id, most=1)
    wait = found[0] if found and found[0]["step"].strip() == query.one("step").strip() else None
    if wait is None:
        return Done(0, 1)
    # The signal goes to the job that has waited longest. That job may ask another question, or the viewer may not see it.
    first = waits_for_signals(limit=1, job=job).where(tables.wait.signal == wait["signal"])
    if context.connection.scalar(first) != job_id:
        return Done(0, 1)
    try:
        statement = send_signal(wait["signal"], _payload(query, wait["question"] or Question("")), job=job)
    except PayloadError as error:
        raise BadInput("payload", query.one("payload"), f"JSON that can be stored ({error})") from error
    context.connection.execute(statement)
    return Done(1, of=wait["signal"])


def _payload(query: Query, question: Question) -> Any:
    """The payload of the clicked button, or the JSON in the field. Raises BadInput."""
    text, label = query.one("payload"), query.one("choice").strip()
    if label:
        for known, payload in question.choices:
            if known.strip() == label:
                return payload
        raise BadInput("choice", label, f"one of {', '.join(known for known, _ in question.choices)}")
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput("payload", text, f"JSON ({error})") from error
    if reason := question.misfit(payload):
        raise BadInput("payload", text, f"an answer of the handler's type ({reason})")
    return payload


QUESTIONS = Page("questions", "Questions", "/questions", read_questions, in_menu=False)
#: The audit does not keep JSON that was typed, because its readers may not be allowed to see it.
QUESTION_ACTIONS = (
    PageAction(
        "answer", "Send", "Sent the signal {of}.", "answer", _answer, target=("id", "step", "choice"),
        left="it no longer waits for this signal, has an answer already, or another job has waited longer for the signal",
    ),
)  # fmt: skip
