"""What type checkers make of `explain_job`: read by mypy and pyright (`test_typing.py`), never run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, assert_type

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, scoped_session

from sa_jobqueue import JobExplanation, JobStatus, WaitReason, explain_job
from sa_jobqueue.rules.reasons import What


def at_once(session: Session, scoped: scoped_session[Any], connection: Connection) -> None:
    found = explain_job(session, 7)
    assert_type(found, JobExplanation)
    assert_type(explain_job(scoped, 7), JobExplanation)
    assert_type(explain_job(connection, 7), JobExplanation)
    assert_type(found.status, JobStatus | None)
    assert_type(found.reasons, tuple[WaitReason, ...])
    assert_type(iter(found), Iterator[WaitReason])
    assert_type(found.reasons[0].what, What)
    assert_type(found.reasons[0].until, datetime | None)
    assert_type(found.needs_help, bool)


async def awaited(session: AsyncSession, connection: AsyncConnection) -> None:
    assert_type(await explain_job(session, 7), JobExplanation)
    assert_type(await explain_job(connection, 7), JobExplanation)


def refused(session: Session) -> None:
    explain_job(session, "7")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    explain_job(7, session)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
