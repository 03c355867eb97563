"""Workflows in tests of statements: graphs by name, driven without a worker.

flow = Flow(connection, "a", "b: a", "c: a b")
flow.complete("a")
assert flow.statuses() == {"a": "completed", "b": "queued", "c": "blocked"}
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from sa_jobqueue import TaskName, Workflow
from sa_jobqueue.models import WorkflowRow
from sa_jobqueue.rules.lifecycle import Claim, Rules, decide
from sa_jobqueue.rules.outcomes import Completed, Discard, Outcome
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.sql.workflows.pruning import Advanced
from sa_jobqueue.workflows import Node
from tests.support.factory import row

__all__ = ["Flow", "events"]

A_TASK = TaskName("a_task")


def events(connection: Connection) -> list[tuple[int, bool | None]]:
    """What has happened and was not read: job, completed."""
    found = connection.execute(text("SELECT job_id, completed FROM sa_jobqueue.workflow_event ORDER BY id"))
    return [(job_id, completed) for job_id, completed in found]


class Flow:
    """A workflow whose jobs have names. Each line is "name: parents"; of the parents, `~a` is for "also if it fails", and `2/a,b,c` for
    two of these.
    """

    def __init__(self, connection: Connection, *lines: str, task: Any = A_TASK, **options: Any) -> None:
        self.connection = connection
        self.workflow = workflow = Workflow("flow", **options)
        self.nodes: dict[str, Node[Any]] = {}
        for line in lines:
            name, _, parents = line.partition(":")
            self.nodes[name] = self._add(workflow, task, parents.split())
        self.connect_callbacks()
        session = Session(connection)
        session.add(workflow)
        session.flush()

    def connect_callbacks(self) -> None:
        for on in ("on_success", "on_failure", "on_end"):
            getattr(self.workflow, on)(TaskName(on))

    def _add(self, workflow: Workflow, task: Any, parents: list[str]) -> Node[Any]:
        if not parents:
            return workflow.add(task)
        joins: list[Any] = []
        for one in parents:
            number, slash, names = one.partition("/")
            if slash:
                joins.append(workflow.at_least(int(number), [self.nodes[name] for name in names.split(",")]))
            else:
                node = self.nodes[one.removeprefix("~")]
                joins.append(node.settled if one.startswith("~") else node)
        return workflow._graph.add(task, (), {}, parents=joins)

    @property
    def id(self) -> int:
        return self.workflow.id

    def job(self, name: str) -> int:
        return self.nodes[name].job_id

    def statuses(self) -> dict[str, str]:
        return {name: row(self.connection, node.job_id).status.value for name, node in self.nodes.items()}

    def reason(self, name: str) -> str:
        return str(row(self.connection, self.job(name)).errors[-1]["message"])

    def start(self, name: str) -> Claim:
        """It is claimed."""
        found = self.connection.execute(
            text(
                "UPDATE sa_jobqueue.job SET status = 'running', claim_token = 7, claims = claims + 1, attempt = attempt + 1, "
                "worker = 'w', lease_expires_at = now() + interval '1 minute' WHERE id = :id AND status = 'queued' RETURNING attempt"
            ),
            {"id": self.job(name)},
        ).one()
        return Claim(self.job(name), 7, found.attempt, 1, 0, f'{{"workflow": {self.id}}}')

    def end(self, name: str, outcome: Outcome) -> None:
        """It is claimed, and ends so."""
        change = decide(self.start(name), outcome, Rules(), random=0.5)
        assert set(default_store.apply(self.connection, [change]).values()) <= {"applied", "cancelled"}

    def advance(self, *, most: int = 1_000) -> Advanced:
        """One step."""
        return default_store.advance(self.connection, {self.id: 0}, most=most)

    def settle(self, *, most: int = 1_000) -> int:
        """Steps until nothing is left to read. Returns how many."""
        for number in range(1, 1_000):
            if self.id not in self.advance(most=most).again:
                return number
        raise AssertionError("it does not come to an end")

    def complete(self, *names: str) -> None:
        for name in names:
            self.end(name, Completed())
            self.settle()

    def fail(self, *names: str) -> None:
        for name in names:
            self.end(name, Discard("on purpose"))
            self.settle()

    def row(self) -> WorkflowRow:
        session = Session(self.connection)
        return session.get_one(WorkflowRow, self.id)

    @property
    def fired(self) -> list[str]:
        """What was called back, in order."""
        found = self.connection.execute(text("SELECT task FROM sa_jobqueue.job WHERE workflow_id IS NULL ORDER BY id"))
        return [task for (task,) in found]
