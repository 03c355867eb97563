"""What the doctor finds, once a minute in a process: some of its checks cost more than a page does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from time import monotonic

import sqlalchemy as sa

from ..doctor import CHECKS, LEVELS, Examination, Finding, look_at
from ..store import store_of
from ..words import listed
from .database import PATIENCE
from .kept import Kept
from .look import Look

__all__ = ["Examined", "examined"]

#: Checks of the server and of tables as such. The others name queues, tasks, workers or jobs, or what sessions of the database do.
_OF_SERVER = frozenset(
    (
        "database", "clock", "schema", "plans", "indexes", "dead-rows", "vacuum", "bloat", "connections", "notify-queue", "frozen-age",
        "replication",
    )
)  # fmt: skip


#: Seconds after which no further check is made: a viewer waits for them.
_WHOLE = 5.0


@dataclass(frozen=True, slots=True)
class Examined:
    """When the doctor looked, and what it found, the worst first."""

    at: datetime
    findings: Sequence[Finding]

    @property
    def alarms(self) -> list[Finding]:
        """What is not well."""
        return [one for one in self.findings if one.level != "ok"]


_kept: Kept[Examined] = Kept(60.0)


def examined(look: Look) -> Examined:
    """What it found. A viewer who may see some queues alone gets what is said of the server."""
    found = _kept.get(look.connection, look.job, lambda: _examine(look))
    if look.queues is None:
        return found
    return Examined(found.at, [one for one in found.findings if one.name in _OF_SERVER])


def _examine(look: Look) -> Examined:
    connection = look.connection
    at = connection.scalar(sa.select(sa.func.now()))
    # LISTEN and NOTIFY are not tried: that takes two more connections.
    findings: list[Finding] = []
    until = monotonic() + _WHOLE
    for finding in look_at(Examination(connection, store=store_of(look.job)), patience=PATIENCE):
        findings.append(finding)
        if monotonic() > until:
            left = [check.name for check in CHECKS if check.name not in {one.name for one in findings}]
            said = f"not looked at, because the other checks took longer than {_WHOLE:g} s: {listed(left)}"
            findings += [Finding("doctor", "notice", said, "run `sa-jobqueue doctor`")] if left else []
            break
    if connection.scalar(sa.select(sa.func.pg_is_in_recovery())):
        # A replica that pages are read from is read-only, and that is well.
        findings = [one for one in findings if one.name != "database"]
    assert at is not None
    return Examined(at, sorted(findings, key=lambda one: -LEVELS.index(one.level)))
