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

#: Nodes alike of one parent that are shown one by one, and others that are named; more are one line, or a number.
_ALIKE = 5
#: Levels that are indented.
_INDENTED = 20
STYLES = {"failed": "red", "cancelled": "yellow", "running": "bold", "completed": "green"}


@dataclass
class _Branch:
    node: Any
    home: int | None = None
    """The parent below which it is shown."""
    joins: str = ""
    """Which of its parents it needs; empty: all."""
    children: list[_Branch] = field(default_factory=list)


def tree(nodes: Sequence[Any], *, paused: bool = False) -> Iterator[tuple[str, str]]:
    """Lines with their styles. `nodes`: the rows of `workflow_nodes`; `paused`: whether the workflow is."""
    branches = {node.id: _Branch(node, joins=joins_of(node)) for node in nodes}
    roots: list[_Branch] = []
    for branch in branches.values():
        before = [one for one in branch.node.parents or () if one in branches and one < branch.node.id]
        branch.home = max(before, default=None)
        (roots if branch.home is None else branches[branch.home].children).append(branch)
    # A loop instead of calls: a chain may be longer than Python's stack.
    left = [(lines, "", 1) for lines in reversed(_alike(roots))]
    while left:
        (branch, number, last), indent, level = left.pop()
        said = _said(branch, branches, paused=paused) if number == 1 else _said_once(branch, number)
        numbered = f"[{level:,}] " if level > _INDENTED else ""
        yield f"{indent}{'└─' if last else '├─'} {numbered}{said}", STYLES.get(branch.node.status, "")
        deeper = indent + ("   " if last else "│  ") if level < _INDENTED else indent
        left += [(line, deeper, level + 1) for line in reversed(_alike(branch.children))]


def _alike(branches: Sequence[_Branch]) -> list[tuple[_Branch, int, bool]]:
    """Each with how many it stands for, and whether it is the last. Leaves alike of which there are many are one."""
    kinds = Counter(_kind(one) for one in branches if not one.children)
    shown: list[tuple[_Branch, int]] = []
    said = set[tuple[str, ...]]()
    for one in branches:
        kind = _kind(one)
        if one.children or kinds[kind] <= _ALIKE:
            shown.append((one, 1))
        elif kind not in said:
            said.add(kind)
            shown.append((one, kinds[kind]))
    return [(one, number, place == len(shown) - 1) for place, (one, number) in enumerate(shown)]


def _kind(branch: _Branch) -> tuple[str, ...]:
    return branch.node.task, branch.node.status, branch.joins


def _said(branch: _Branch, branches: Mapping[int, _Branch], *, paused: bool) -> str:
    node = branch.node
    about = "; ".join(filter(None, [branch.joins, *_others(branch), *_waits(branch, branches, paused=paused)]))
    if about:
        about = f" ({about})"
    why = ""
    if node.status in {"failed", "cancelled"} and isinstance(node.error, dict):
        why = f": {cleaned(one_line(mask_passwords(str(node.error.get('message', '')))))}"
    return f"{node.id} {cleaned(name_of(node.task))} {node.status}{about}{why}"


def _said_once(branch: _Branch, number: int) -> str:
    """For many that are alike."""
    node = branch.node
    joins = f"{branch.joins}; " if branch.joins else ""
    return f"{cleaned(name_of(node.task))} × {number:,} {node.status} ({joins}from job {node.id} on)"


def _others(branch: _Branch) -> Iterator[str]:
    """Its other parents, or how many it has if these are many."""
    parents = branch.node.parents or ()
    others = [one for one in parents if one != branch.home]
    if 0 < len(others) <= _ALIKE:
        yield f"also behind {', '.join(map(str, others))}"
    elif others and "count" not in branch.node.policies:
        yield f"of {len(parents):,}"


def _waits(branch: _Branch, branches: Mapping[int, _Branch], *, paused: bool) -> Iterator[str]:
    """For what a blocked job waits, where the tree does not show it."""
    node = branch.node
    if node.status != "blocked":
        return
    if node.blocked_by == 0:
        counted = [
            one for one, policy in zip(node.parents or (), node.policies or (), strict=True) if policy == "count"
        ]
        completed = sum(branches[one].node.status == "completed" for one in counted if one in branches)
        yield f"{completed:,} completed"
    elif node.blocked_by is not None and node.blocked_by > 0:
        if len(node.parents or ()) > 1:
            yield f"waits for {node.blocked_by}"
    elif not paused:
        yield "to be looked at"


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


Id = Annotated[int, typer.Argument(metavar="ID", parser=parse_workflow, help="The workflow's number.")]
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
        typer.Option(
            metavar="STATUS", help="Only these: running, completed, failed, cancelled; or paused, of those that run."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this name.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=1_000, help="At most N.")] = 20,
    json: Json = False,
) -> None:
    """List workflows, the newest first, with their jobs by status.

    sa-jobqueue workflow list --status failed
    """
    chosen = sa.select(WorkflowRow, sa.func.now()).order_by(WorkflowRow.id.desc()).limit(limit)
    if status is not None:
        chosen = chosen.where(_PAUSED if status is Status.PAUSED else WorkflowRow.status == status.value)
    if name is not None:
        chosen = chosen.where(WorkflowRow.name == name)
    with transaction(config) as connection, Session(connection, expire_on_commit=False) as session:
        rows = session.execute(chosen).all()
        counts = _counts(session, [row.id for row, _ in rows])
    if json:
        print_json([_as_json(row) | {"jobs": dict(counts[row.id])} for row, _ in rows])
        return
    if not rows:
        chosen_by = status is not None or name is not None
        note(f"no workflows{' of this kind' if chosen_by else '; code makes them: session.add(Workflow(...))'}")
        return
    lines = [_line(row, now, counts[row.id]) for row, now in rows]
    print_table(_COLUMNS, lines, styles=[STYLES.get(row.status, "") for row, _ in rows])


def show(config: Config, id: Id, *, json: Json = False) -> None:
    """Show one workflow as a tree: each job below the last one that it waits for.

    A job with several parents names the others, says which of them it needs where that is not all, and for which it waits. Many jobs alike
    are one line.

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
        print_json(
            _as_json(row)
            | {
                "nodes": [dict(node._mapping) | {"error": masked(node.error)} for node in nodes],  # noqa: SLF001
                "callbacks": [dict(one._mapping) for one in callbacks],  # noqa: SLF001
            }
        )
        return
    counts = Counter[str](node.status for node in nodes)
    say(f"workflow {row.id} {cleaned(row.name)}: {row.status}", f"bold {STYLES.get(row.status, '')}")
    for said in filter(None, (_numbers(counts), _note(row, now))):
        say(said)
    for line, style in tree(nodes, paused=row.paused_at is not None):
        say(line, style)
    for one in callbacks:
        fired = "enqueued" if one.fired_at is not None else "not yet" if row.finished_at is None else "not enqueued"
        say(f"on {one.event}: {cleaned(one.task)} ({fired})", "dim")


def cancel(
    config: Config,
    ids: Ids,
    *,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="What their jobs say of it.")
    ] = "the workflow was cancelled by an operator",
    json: Json = False,
) -> None:
    """Cancel workflows: jobs that wait are cancelled, those that run are asked to stop.

    sa-jobqueue workflow cancel 7 --reason "the customer left"
    """
    _act(config, cancel_workflows(*ids, reason=reason), ids, "cancelled", "has ended, or is not there", json=json)


def retry(
    config: Config,
    id: Id,
    *,
    node: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="JOB", parser=parse_id, help="Only this job, and those that were cancelled because of it."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Retry what failed or was cancelled in a workflow. Each job waits for its parents again.

    sa-jobqueue workflow retry 7 --from 4711
    """
    with transaction(config) as connection:
        if connection.scalar(sa.select(WorkflowRow.id).where(WorkflowRow.id == id)) is None:
            _no_workflow(id)
        back = list(connection.scalars(retry_workflow(id, from_node=node)))
    if json:
        print_json({"id": id, "jobs": back})
        return
    say(f"{jobs_of(len(back))} retried")
    if not back:
        what = "no job of it has failed or was" if node is None else f"job {node} of it has not failed, and was not"
        note(f"{what} cancelled: see `sa-jobqueue workflow show {id}`")


def pause(config: Config, ids: Ids, *, json: Json = False) -> None:
    """Pause workflows: no more of their jobs are started. Those that run go on.

    sa-jobqueue workflow pause 7
    """
    _act(config, pause_workflows(*ids), ids, "paused", "has ended, is paused, or is not there", json=json)


def resume(config: Config, ids: Ids, *, json: Json = False) -> None:
    """Let paused workflows go on.

    sa-jobqueue workflow resume 7
    """
    _act(config, resume_workflows(*ids), ids, "resumed", "is not paused", json=json)


def _act(config: Config, statement: sa.Executable, ids: Sequence[int], done: str, left: str, *, json: bool) -> None:
    with transaction(config) as connection:
        changed = sorted(connection.scalars(statement))
    if json:
        print_json({done: changed})
        return
    for one in ids:
        if one in changed:
            say(f"workflow {one} {done}")
        else:
            note(f"workflow {one} {left}")


def _no_workflow(id: int) -> NoReturn:
    fail(f"there is no workflow {id}: `sa-jobqueue workflow list` shows those there are", 1)


def _counts(session: Session, ids: Sequence[int]) -> dict[int, Counter[str]]:
    found: dict[int, Counter[str]] = {one: Counter() for one in ids}
    for workflow_id, status, number in session.execute(workflow_counts(ids)):
        found[workflow_id][status] = number
    return found


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
    said = []
    if row.paused_at is not None:
        said.append(f"paused {_since(row.paused_at, now)} ago")
    if row.reason:
        said.append(cleaned(one_line(mask_passwords(row.reason))))
    if row.deadline_at is not None and row.finished_at is None:
        left = (row.deadline_at - now).total_seconds()
        said.append(f"deadline {'in' if left > 0 else 'over for'} {age(abs(left), short=True)}")
    return "; ".join(said)


def _as_json(row: WorkflowRow) -> dict[str, Any]:
    columns = (
        "id",
        "name",
        "status",
        "created_at",
        "finished_at",
        "deadline_at",
        "paused_at",
        "cancelled_at",
        "purge_at",
    )
    return {name: getattr(row, name) for name in columns} | {"meta": row.meta, "reason": masked(row.reason)}
