"""A workflow: its graph, the times of its parts, its jobs and its actions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from ...health.one_job import read_short_args
from ...models import status_literal
from ...rules.failures import error_text
from ...rules.lifecycle import JobStatus
from ...sql.parts import FIRST_ID
from ...sql.readings.depths import CAP
from ...sql.workflows.actions import joins_of, name_of
from ...sql.workflows.readings import workflow_callbacks, workflow_graph, workflow_nodes
from ...util.log import one_line
from ...util.urls import mask_passwords
from ..actions.workflows import BROKEN, found_workflow, lacks_parent, may_change
from ..folding import MOST_BOXES, Box, behind, folded
from ..render import short_args
from ..request import Page, PageContext
from .workflows import bar_of, counted, numbers_of, state_of_workflow

_PAGE = 50
#: The jobs that are read for the graph: 40 ms of the database, and 80 ms here (2026-11).
_DRAWN = 5_000
#: The lines of the table of groups.
_LINES = 60
#: The parents that are listed.
_LISTED = 5
#: The characters of the arguments in a box, and in a row of the table.
_IN_BOX, _IN_ROW = 30, 120


def read_workflow(context: PageContext) -> dict[str, Any]:
    """The workflow, with the jobs that the viewer may see."""
    row = found_workflow(context, context.path["id"])
    counts = counted(context, [row.id], CAP)[row.id]
    statement = workflow_graph(row.id, limit=_DRAWN, job=context.job).where(*context.mine())
    nodes = context.connection.execute(statement).all()
    unfold = context.query.one("unfold") == "yes"
    picture = folded(nodes, unfold=unfold, opened=context.query.ids("open"))
    boxes = list(picture.boxes)
    after = context.query.id("after")
    page = workflow_nodes(row.id, after=FIRST_ID if after is None else after, limit=_PAGE + 1, job=context.job)
    members = context.connection.execute(page.where(*context.mine())).all()
    shown = members[:_PAGE]
    seen = frozenset(context.seen([parent for node in shown for parent in node.parents or ()]))
    changes = may_change(context, row.id)
    ended = [node.id for node in shown if node.status in BROKEN]
    stuck = lacks_parent(context, ended) if changes else {}
    failed = _first_failed(context, row.id) if counts["failed"] else ()
    alone = [box for box in boxes if box.number == 1]
    words = _words(context, {job.id: job.task for job in (*alone, *shown, *failed)})
    is_folded, of_its_task = len(alone) < len(boxes), Counter(box.task for box in boxes)
    return {
        "now": row.now,
        "workflow": row,
        "workflow_state": state_of_workflow(row),
        "note": one_line(mask_passwords(row.reason or "")),
        "failed": [
            {**_node(node, row, (), (), words), "behind": numbers_of(behind(nodes, node.id))} for node in failed or ()
        ],
        "number": counts.total(),
        "counts": counts,
        "bar": bar_of(counts),
        "numbers": numbers_of(counts),
        "graph": {
            "boxes": [_drawn(box, words, len(boxes), of_its_task[box.task]) for box in boxes],
            "edges": [[str(start), str(end), policy] for start, end, policy in picture.edges],
            "workflow": str(row.id),
        },
        "undrawn": picture.hidden,
        "partly": len(nodes) == _DRAWN,
        "drawn_jobs": _DRAWN,
        "unfolded": unfold or bool(context.query.one("open")),
        "can_unfold": is_folded and len(nodes) <= MOST_BOXES,
        # The table of jobs shows all of a small workflow.
        "groups": [_group(box, row) for box in boxes[:_LINES]] if is_folded and len(nodes) > _PAGE else [],
        "more_groups": max(len(boxes) - _LINES, 0),
        "nodes": [_node(node, row, seen, stuck, words) for node in shown],
        "after": shown[-1].id if len(members) > _PAGE else None,
        "callbacks": context.connection.execute(workflow_callbacks(row.id, job=context.job)).all(),
        "may_cancel": changes and context.access.may("cancel_workflow") and row.finished_at is None,
        "may_pause": changes and context.access.may("pause") and row.finished_at is None,
        "may_retry": changes and context.access.may("retry_workflow"),
        "may_retry_all": counts["failed"] + counts["cancelled"] > 0,
    }


def _first_failed(context: PageContext, id: int) -> Sequence[Any]:
    """The first failed job, which is why the workflow failed."""
    job = context.job
    failed = workflow_nodes(id, limit=1, job=job).where(job.status == status_literal(JobStatus.FAILED), *context.mine())
    return context.connection.execute(failed).all()


def _words(context: PageContext, tasks: Mapping[int, str]) -> dict[int, str]:
    """The arguments that tell each of these jobs, whose tasks are given, apart from the others of its task; of a job without others, all."""
    found = read_short_args(context.connection, list(tasks), job=context.job)
    args = {job: short_args(tasks[job], value, context.options.format_args) for job, value in found.items()}
    values: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    numbers = Counter(tasks.values())
    for job, of_job in args.items():
        for name, value in of_job.items():
            values[tasks[job], name].add(value)

    def tells(task: str, name: str) -> bool:
        return numbers[task] == 1 or len(values[task, name]) > 1

    return {
        job: ", ".join(f"{name}={value}" for name, value in of_job.items() if tells(tasks[job], name))
        for job, of_job in args.items()
    }


def _cut(text: str, most: int) -> str:
    """The start and the end of a text, because names and addresses that differ often differ at their end."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-most // 2 :]}"


def _drawn(box: Box, words: Mapping[int, str], number: int, of_its_task: int) -> dict[str, Any]:
    """A box for the page's script, among this number of boxes, and this number of boxes of its task."""
    if box.number == 1:
        more = _cut(words.get(box.id, ""), _IN_BOX) or (str(box.id) if of_its_task > 1 else "")
        text = f"{box.status} · {more}" if more else box.status
    else:
        text = ", ".join(f"{number:,} {status}" for status, number in numbers_of(box.statuses))
    return {
        "id": str(box.id), "task": box.task, "name": name_of(box.task), "number": box.number, "state": box.status, "said": text,
        "opens": box.number > 1 and number - 1 + box.number <= MOST_BOXES,
    }  # fmt: skip


def _group(box: Box, row: Any) -> dict[str, Any]:
    """A row of the table of groups."""
    return {
        "id": box.id, "task": box.task, "name": name_of(box.task), "number": box.number, "status": box.status, "numbers": numbers_of(box.statuses),
        **_lane(row, box.created_at, box.started_at, box.ended_at),
    }  # fmt: skip


def _lane(row: Any, created: datetime | None, started: datetime | None, ended: datetime | None) -> dict[str, Any]:
    """When a job or a group waited and ran, on a line that is 1,000 wide and as long as the workflow."""
    start: datetime = row.created_at
    end: datetime = row.finished_at or row.now
    whole = max((end - start).total_seconds(), 1e-6)

    def place(moment: datetime) -> float:
        return round(min(max((moment - start).total_seconds() / whole, 0.0), 1.0) * 1_000, 1)

    made, last = place(created or start), ended or end
    began = place(started or last)
    return {
        "wait": (made, max(began - made, 0.0)),
        "run": None if started is None else (began, max(place(last) - began, 2.0)),
        "seconds": None if started is None else max((last - started).total_seconds(), 0.0),
    }


def _node(
    node: Any, row: Any, seen: Collection[int], stuck: Collection[int], words: Mapping[int, str]
) -> dict[str, Any]:
    """A row of the table. `seen`: the parents that the viewer may see; `stuck`: the jobs that cannot be retried before a parent."""
    parents = [parent for parent in node.parents or () if parent in seen]
    error = ""
    if isinstance(node.error, dict) and node.status != JobStatus.COMPLETED:
        kind = str(node.error.get("type", "")).rpartition(".")[2]
        message = one_line(mask_passwords(str(node.error.get("message", ""))))
        error = error_text(kind, message) if kind else message
    started = node.claimed_at if node.status == JobStatus.RUNNING or node.finished_at else None
    return {
        **node._mapping,  # noqa: SLF001
        **_lane(row, node.created_at, started, node.finished_at),
        "name": name_of(node.task),
        "words": _cut(words.get(node.id, ""), _IN_ROW),
        "parents": parents[:_LISTED],
        "more_parents": max(len(parents) - _LISTED, 0),
        "joins": joins_of(node),
        "why": error,
        "can_retry": node.status in BROKEN and node.id not in stuck,
    }


WORKFLOW = Page("workflow", "Workflow", "/workflows/{id}", read_workflow, in_menu=False)
