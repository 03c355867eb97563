"""A workflow: its graph, the times of its parts, its jobs and its actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

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
from ..folding import MOST_BOXES, Box, folded
from ..request import Page, PageContext
from .workflows import bar_of, counted, numbers_of, state_of_workflow

_PAGE = 50
#: The jobs that are read for the graph: 40 ms of the database, and 80 ms here (2026-11).
_DRAWN = 5_000
#: The lines of the chart of times.
_LINES = 60
#: The parents that are listed.
_LISTED = 5


def read_workflow(context: PageContext) -> dict[str, Any]:
    """The workflow, with the jobs that the viewer may see."""
    row = found_workflow(context, context.path["id"])
    counts = counted(context, [row.id], CAP)[row.id]
    statement = workflow_graph(row.id, limit=_DRAWN, job=context.job).where(*context.mine())
    nodes = context.connection.execute(statement).all()
    unfold = context.query.one("unfold") == "yes"
    picture = folded(nodes, unfold=unfold)
    boxes = list(picture.boxes)
    of_its_task = Counter(box.task for box in boxes)
    after = context.query.id("after")
    page = workflow_nodes(row.id, after=FIRST_ID if after is None else after, limit=_PAGE + 1, job=context.job)
    members = context.connection.execute(page.where(*context.mine())).all()
    shown = members[:_PAGE]
    seen = frozenset(context.seen([parent for node in shown for parent in node.parents or ()]))
    changes = may_change(context, row.id)
    ended = [node.id for node in shown if node.status in BROKEN]
    stuck = lacks_parent(context, ended) if changes else {}
    return {
        "now": row.now,
        "workflow": row,
        "workflow_state": state_of_workflow(row),
        "note": one_line(mask_passwords(row.reason or "")),
        "failed": _first_failed(context, row.id) if counts["failed"] else None,
        "number": counts.total(),
        "bar": bar_of(counts),
        "numbers": numbers_of(counts),
        "graph": {
            "boxes": [_drawn(box, of_its_task[box.task]) for box in boxes],
            "edges": [[str(start), str(end), policy] for start, end, policy in picture.edges],
            "workflow": str(row.id),
        },
        "undrawn": picture.hidden,
        "partly": len(nodes) == _DRAWN,
        "drawn_jobs": _DRAWN,
        "unfolded": unfold,
        "can_unfold": len(nodes) <= MOST_BOXES and (unfold or any(box.number > 1 for box in boxes)),
        "lines": _lines(boxes[:_LINES], row),
        "more_lines": max(len(boxes) - _LINES, 0),
        "nodes": [_node(node, seen, stuck) for node in shown],
        "after": shown[-1].id if len(members) > _PAGE else None,
        "callbacks": context.connection.execute(workflow_callbacks(row.id, job=context.job)).all(),
        "may_cancel": changes and context.access.may("cancel_workflow") and row.finished_at is None,
        "may_pause": changes and context.access.may("pause") and row.finished_at is None,
        "may_retry": changes and context.access.may("retry_workflow"),
        "may_retry_all": counts["failed"] + counts["cancelled"] > 0,
    }


def _first_failed(context: PageContext, id: int) -> dict[str, Any] | None:
    """The first failed job, which is why the workflow failed, as a row of the table."""
    job = context.job
    failed = workflow_nodes(id, limit=1, job=job).where(job.status == status_literal(JobStatus.FAILED), *context.mine())
    return next((_node(node, (), ()) for node in context.connection.execute(failed)), None)


def _drawn(box: Box, of_its_task: int) -> dict[str, Any]:
    """A box for the page's script. `of_its_task`: the number of boxes with its task."""
    if box.number == 1:
        text = f"{box.status} · {box.id}" if of_its_task > 1 else box.status
    else:
        text = ", ".join(f"{number:,} {status}" for status, number in numbers_of(box.statuses))
    return {
        "id": str(box.id), "task": box.task, "name": name_of(box.task), "number": box.number, "state": box.status, "said": text,
    }  # fmt: skip


def _lines(boxes: Sequence[Box], row: Any) -> list[dict[str, Any]]:
    """The times at which each box waited and ran, on a line that is 1,000 wide."""
    start: datetime = row.created_at
    end: datetime = row.finished_at or row.now
    whole = max((end - start).total_seconds(), 1e-6)

    def place(moment: datetime) -> float:
        return round(min(max((moment - start).total_seconds() / whole, 0.0), 1.0) * 1_000, 1)

    lines = []
    for box in boxes:
        made = place(box.created_at or start)
        ended = end if box.ended_at is None else box.ended_at
        began = place(ended if box.started_at is None else box.started_at)
        lines.append(
            {
                "id": box.id,
                "name": name_of(box.task) + (f" × {box.number:,}" if box.number > 1 else ""),
                "state": box.status,
                "wait": (made, max(began - made, 0.0)),
                "run": None if box.started_at is None else (began, max(place(ended) - began, 2.0)),
                "seconds": None if box.started_at is None else max((ended - box.started_at).total_seconds(), 0.0),
            }
        )
    return lines


def _node(node: Any, seen: Collection[int], stuck: Collection[int]) -> dict[str, Any]:
    """A row of the table. `seen`: the parents that the viewer may see; `stuck`: the jobs that cannot be retried before a parent."""
    parents = [parent for parent in node.parents or () if parent in seen]
    error = ""
    if isinstance(node.error, dict) and node.status != JobStatus.COMPLETED:
        kind = str(node.error.get("type", "")).rpartition(".")[2]
        message = one_line(mask_passwords(str(node.error.get("message", ""))))
        error = error_text(kind, message) if kind else message
    ran = None
    if node.claimed_at is not None and node.finished_at is not None:
        ran = max((node.finished_at - node.claimed_at).total_seconds(), 0.0)
    return {
        **node._mapping,  # noqa: SLF001
        "name": name_of(node.task),
        "parents": parents[:_LISTED],
        "more_parents": max(len(parents) - _LISTED, 0),
        "joins": joins_of(node),
        "why": error,
        "can_retry": node.status in BROKEN and node.id not in stuck,
        "ran": ran,
    }


WORKFLOW = Page("workflow", "Workflow", "/workflows/{id}", read_workflow, in_menu=False)
