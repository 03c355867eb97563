"""Workflows: `workflow list`, `show`, `cancel`, `retry`, `pause` and `resume`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, NoReturn

import sqlalchemy as sa
import typer
from sqlalchemy.orm import Session

from ..models import WorkflowRow
from ..rules.lifecycle import JobStatus
from ..rules.words import age, jobs_of
from ..sql.workflows.actions import joins_of, name_of
from ..sql.workflows.readings import workflow_callbacks, workflow_counts
from ..statements import cancel_workflows, pause_workflows, resume_workflows, retry_workflow, workflow_nodes
from ..util.log import one_line
from ..util.urls import mask_passwords, masked
from .config import Config, Json, parse_id, parse_workflow
from .output import Column, cleaned, fail, note, print_json, print_table, say
from .place import transaction

#: The most leaves of the same kind below one parent that get a line each, and the most parents that are listed.
_ALIKE = 5
#: The number of levels that are indented.
_INDENTED = 20
STYLES = {"failed": "red", "cancelled": "yellow", "running": "bold", "completed": "green"}


@dataclass
class _Branch:
    node: Any
    shown_below: int | None = None
    """The parent below which the node is shown."""
    joins: str = ""
    """How many of its parents the node needs; empty: all."""
    children: list[_Branch] = field(default_factory=list)


def _tree(nodes: Sequence[Any], *, paused: bool = False) -> Iterator[tuple[str, str]]:
    """Lines with their styles. `nodes`: the rows of `workflow_nodes`; `paused`: whether the workflow is paused."""
    branches = {node.id: _Branch(node, joins=joins_of(node)) for node in nodes}
    roots: list[_Branch] = []
    for branch in branches.values():
        before = [parent for parent in branch.node.parents or () if parent in branches and parent < branch.node.id]
        branch.shown_below = max(before, default=None)
        (roots if branch.shown_below is None else branches[branch.shown_below].children).append(branch)
    # A loop instead of calls: a chain may be longer than Python's stack.
    left = [(line, "", 1) for line in reversed(_grouped(roots))]
    while left:
        (branch, number, last), indent, level = left.pop()
        text = _described(branch, branches, paused=paused) if number == 1 else _described_together(branch, number)
        numbered = f"[{level:,}] " if level > _INDENTED else ""
        yield f"{indent}{'└─' if last else '├─'} {numbered}{text}", STYLES.get(branch.node.status, "")
        deeper = indent + ("   " if last else "│  ") if level < _INDENTED else indent
        left += [(line, deeper, level + 1) for line in reversed(_grouped(branch.children))]


def _grouped(branches: Sequence[_Branch]) -> list[tuple[_Branch, int, bool]]:
    """Branches with the number that each stands for, and whether it is the last. Many leaves of one kind are grouped."""
    kinds = Counter(_kind(branch) for branch in branches if not branch.children)
    shown: dict[Any, tuple[_Branch, int]] = {}
    for branch in branches:
        kind = _kind(branch)
        if branch.children or kinds[kind] <= _ALIKE:
            shown[branch.node.id] = (branch, 1)
        else:
            shown.setdefault(kind, (branch, kinds[kind]))
    return [(branch, number, place == len(shown)) for place, (branch, number) in enumerate(shown.values(), 1)]


def _kind(branch: _Branch) -> tuple[str, ...]:
    return branch.node.task, branch.node.status, branch.joins


def _described(branch: _Branch, branches: Mapping[int, _Branch], *, paused: bool) -> str:
    node = branch.node
    details = "; ".join(filter(None, [branch.joins, _other_parents(branch), _waits(branch, branches, paused=paused)]))
    error = ""
    if node.status in {"failed", "cancelled"} and isinstance(node.error, dict):
        error = f": {cleaned(one_line(mask_passwords(str(node.error.get('message', '')))))}"
    return f"{node.id} {cleaned(name_of(node.task))} {node.status}{f' ({details})' if details else ''}{error}"


def _described_together(branch: _Branch, number: int) -> str:
    node = branch.node
    joins = f"{branch.joins}; " if branch.joins else ""
    return f"{cleaned(name_of(node.task))} × {number:,} {node.status} ({joins}from job {node.id} on)"


def _other_parents(branch: _Branch) -> str:
    """The parents below which it is not shown, or the number of all its parents if there are many."""
    parents = branch.node.parents or ()
    others = [parent for parent in parents if parent != branch.shown_below]
    if 0 < len(others) <= _ALIKE:
        return f"also behind {', '.join(map(str, others))}"
    return f"of {len(parents):,}" if others and "count" not in branch.node.policies else ""


def _waits(branch: _Branch, branches: Mapping[int, _Branch], *, paused: bool) -> str:
    """The reason why a blocked job waits, if the tree does not show it."""
    node = branch.node
    if node.status != "blocked":
        return ""
    if node.blocked_by == 0:
        policies = zip(node.parents or (), node.policies or (), strict=True)
        counted = [parent for parent, policy in policies if policy == "count" and parent in branches]
        return f"{sum(branches[parent].node.status == 'completed' for parent in counted):,} completed"
    if node.blocked_by is not None and node.blocked_by > 0:
        return f"waits for {node.blocked_by}" if len(node.parents or ()) > 1 else ""
    return "" if paused else "waits for a worker"


_PAGE = 1_000
_PAUSED = WorkflowRow.finished_at.is_(None) & WorkflowRow.paused_at.is_not(None)
_ORDER = [status.value for status in JobStatus]


class Status(StrEnum):
    """The statuses of a workflow, and "paused", which a running one may be."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PAUSED = "paused"


Id = Annotated[int, typer.Argument(metavar="ID", parser=parse_workflow, help="The workflow's id.")]
Ids = Annotated[list[int], typer.Argument(metavar="ID", parser=parse_workflow, help="These workflows.")]

_COLUMNS = (
    Column("id", justify="right"),
    Column("name", wide=True, least=10),
    Column("status"),
    Column("jobs", wrapped=True, least=12),
    Column("made", optional=True),
    Column("ended"),
    Column("note", wrapped=True, least=10),
)


def list_(
    config: Config,
    *,
    status: Annotated[
        Status | None,
        typer.Option(metavar="STATUS", help="With this status: running, completed, failed, cancelled; or paused."),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="With this name.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=1_000, help="At most N workflows.")
    ] = 20,
    json: Json = False,
) -> None:
    """List workflows, newest first, with their jobs by status.

    sa-jobqueue workflow list --status failed
    """
    chosen = sa.select(WorkflowRow, sa.func.now()).order_by(WorkflowRow.id.desc()).limit(limit)
    if status is not None:
        chosen = chosen.where(_PAUSED if status is Status.PAUSED else WorkflowRow.status == status.value)
    if name is not None:
        chosen = chosen.where(WorkflowRow.name == name)
    with transaction(config) as connection, Session(connection, expire_on_commit=False) as session:
        rows = session.execute(chosen).all()
        counts: dict[int, Counter[str]] = {row.id: Counter() for row, _ in rows}
        for workflow_id, state, number in session.execute(workflow_counts(list(counts))):
            counts[workflow_id][state] = number
    if json:
        print_json([_as_json(row) | {"jobs": dict(counts[row.id])} for row, _ in rows])
        return
    if not rows:
        filtered = status is not None or name is not None
        note(f"no {'such workflows' if filtered else 'workflows; code makes them: session.add(Workflow(...))'}")
        return
    lines = [_line(row, now, counts[row.id]) for row, now in rows]
    print_table(_COLUMNS, lines, styles=[STYLES.get(row.status, "") for row, _ in rows])


def show(config: Config, id: Id, *, json: Json = False) -> None:
    """Show one workflow as a tree: each job below the last of its parents.

    For a job with several parents the tree shows the others, how many it needs if not all, and how many it still waits for. Many
    jobs of the same kind share a line.

    sa-jobqueue workflow show 7
    """
    with transaction(config) as connection, Session(connection, expire_on_commit=False) as session:
        found = session.execute(sa.select(WorkflowRow, sa.func.now()).where(WorkflowRow.id == id)).one_or_none()
        if found is None:
            _no_workflow(id)
        row, now = found
        nodes = list(_nodes(session, id))
        callbacks: Sequence[Any] = session.execute(workflow_callbacks(id)).all()
    if json:
        shown = [dict(node._mapping) | {"error": masked(node.error)} for node in nodes]  # noqa: SLF001
        print_json(_as_json(row) | {"nodes": shown, "callbacks": [dict(callback._mapping) for callback in callbacks]})  # noqa: SLF001
        return
    counts = Counter[str](node.status for node in nodes)
    say(f"workflow {row.id} {cleaned(row.name)}: {row.status}", f"bold {STYLES.get(row.status, '')}")
    for line in filter(None, (_numbers(counts), _note(row, now))):
        say(line)
    for line, style in _tree(nodes, paused=row.paused_at is not None):
        say(line, style)
    for callback in callbacks:
        waiting = "not yet" if row.finished_at is None else "not enqueued"
        state = waiting if callback.fired_at is None else "enqueued"
        say(f"on {callback.event}: {cleaned(callback.task)} ({state})", "dim")


def cancel(
    config: Config,
    ids: Ids,
    *,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="The message of their jobs' errors.")
    ] = "the workflow was cancelled by an operator",
    json: Json = False,
) -> None:
    """Cancel workflows: waiting jobs are cancelled, running jobs are asked to stop.

    sa-jobqueue workflow cancel 7 --reason "the customer left"
    """
    _act(config, cancel_workflows(*ids, reason=reason), ids, "cancelled", "has ended, or does not exist", json=json)


def retry(
    config: Config,
    id: Id,
    *,
    node: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="JOB", parser=parse_id, help="Only this job, and jobs that were cancelled because of it."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Retry the failed and cancelled jobs of a workflow. Each job waits for its parents again.

    sa-jobqueue workflow retry 7 --from 4711
    """
    with transaction(config) as connection:
        if connection.scalar(sa.select(WorkflowRow.id).where(WorkflowRow.id == id)) is None:
            _no_workflow(id)
        retried = list(connection.scalars(retry_workflow(id, from_node=node)))
    if json:
        print_json({"id": id, "jobs": retried})
        return
    say(f"{jobs_of(len(retried))} retried")
    if not retried:
        what = "none of its jobs has failed or was" if node is None else f"its job {node} has not failed, and was not"
        note(f"{what} cancelled: see `sa-jobqueue workflow show {id}`")


def pause(config: Config, ids: Ids, *, json: Json = False) -> None:
    """Pause workflows: no more of their jobs start. Running jobs go on.

    sa-jobqueue workflow pause 7
    """
    _act(config, pause_workflows(*ids), ids, "paused", "has ended, is paused, or does not exist", json=json)


def resume(config: Config, ids: Ids, *, json: Json = False) -> None:
    """Resume paused workflows.

    sa-jobqueue workflow resume 7
    """
    _act(config, resume_workflows(*ids), ids, "resumed", "is not paused", json=json)


def _act(config: Config, statement: sa.Executable, ids: Sequence[int], done: str, reason: str, *, json: bool) -> None:
    with transaction(config) as connection:
        changed = sorted(connection.scalars(statement))
    if json:
        print_json({done: changed})
        return
    for workflow_id in ids:
        if workflow_id in changed:
            say(f"workflow {workflow_id} {done}")
        else:
            note(f"workflow {workflow_id} {reason}")


def _no_workflow(id: int) -> NoReturn:
    fail(f"there is no workflow {id}: `sa-jobqueue workflow list` lists all workflows", 1)


def _nodes(session: Session, id: int) -> Iterator[Any]:
    page = session.execute(workflow_nodes(id, limit=_PAGE)).all()
    while page:
        yield from page
        page = session.execute(workflow_nodes(id, after=page[-1].id, limit=_PAGE)).all()


def _numbers(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[status]:,} {status}" for status in _ORDER if counts[status])


def _line(row: WorkflowRow, now: Any, counts: Counter[str]) -> tuple[object, ...]:
    ended = "" if row.finished_at is None else f"{_since(row.finished_at, now)} ago"
    return row.id, row.name, row.status, _numbers(counts), f"{_since(row.created_at, now)} ago", ended, _note(row, now)


def _since(time: Any, now: Any) -> str:
    return age((now - time).total_seconds(), short=True)


def _note(row: WorkflowRow, now: Any) -> str:
    notes: list[str] = []
    if row.paused_at is not None:
        notes.append(f"paused {_since(row.paused_at, now)} ago")
    if row.reason:
        notes.append(cleaned(one_line(mask_passwords(row.reason))))
    if row.deadline_at is not None and row.finished_at is None:
        left = (row.deadline_at - now).total_seconds()
        notes.append(f"deadline {'in' if left > 0 else 'over for'} {age(abs(left), short=True)}")
    return "; ".join(notes)


def _as_json(row: WorkflowRow) -> dict[str, Any]:
    times = ("created_at", "finished_at", "deadline_at", "paused_at", "cancelled_at", "purge_at")
    columns = ("id", "name", "status", *times, "meta")
    return {name: getattr(row, name) for name in columns} | {"reason": masked(row.reason)}
