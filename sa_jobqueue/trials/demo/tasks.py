"""What an application brings: its tables, its tasks, and the transaction that writes a row and enqueues its job.

This application keeps an index of Python files. Everything the queue has to do with it is imported from `sa_jobqueue`; the rest
is SQLAlchemy as usual. A worker serves it with

    sa-jobqueue work --app sa_jobqueue.trials.demo.tasks --queue index=4
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ... import AsyncJobContext, JobContext, RetryPolicy, enqueue, task

# ---- the application's tables


class Base(DeclarativeBase):
    # In a schema of their own, so that the demo never touches a table of yours.
    metadata = sa.MetaData(schema="sa_jobqueue_demo")


class SourceFile(Base):
    """A file to be indexed; its job is enqueued in the transaction that writes this row."""

    __tablename__ = "source_file"

    id: Mapped[int] = mapped_column(primary_key=True)
    path: Mapped[str]


class Module(Base):
    """What came of a file that parses: one row per file.

    There is no such constraint, on purpose: a job whose writes were committed twice would show in the report.
    """

    __tablename__ = "module"

    id: Mapped[int] = mapped_column(primary_key=True)
    file_id: Mapped[int] = mapped_column(sa.ForeignKey(SourceFile.id), index=True)
    lines: Mapped[int]


class Finding(Base):
    """A function, a class or an import, and the line where it stands."""

    __tablename__ = "finding"

    id: Mapped[int] = mapped_column(primary_key=True)
    file_id: Mapped[int] = mapped_column(sa.ForeignKey(SourceFile.id), index=True)
    kind: Mapped[str]
    name: Mapped[str]
    line: Mapped[int]


# ---- its work, which knows nothing of queues


class Name(NamedTuple):
    """Something that a file defines or imports. `kind`: function, class or import."""

    kind: str
    name: str
    line: int


class Source(NamedTuple):
    """What is in a file."""

    lines: int
    names: list[Name]


def examine(path: str) -> Source:
    """Read and parse a file.

    Raises OSError where it cannot be read, SyntaxError (ValueError for a NUL byte) where it cannot be parsed.
    """
    text = Path(path).read_bytes()
    tree = ast.parse(text, filename=path)
    return Source(len(text.splitlines()), [name for node in ast.walk(tree) for name in _names(node)])


def _names(node: ast.AST) -> Iterator[Name]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield Name("function", node.name, node.lineno)
        case ast.ClassDef():
            yield Name("class", node.name, node.lineno)
        case ast.Import():
            yield from (Name("import", imported.name, node.lineno) for imported in node.names)
        case ast.ImportFrom():
            origin = "." * node.level + (f"{node.module}." if node.module else "")
            yield from (Name("import", origin + imported.name, node.lineno) for imported in node.names)
        case _:
            pass


def rows_for(file_id: int, source: Source) -> list[Base]:
    """The rows that record what is in a file."""
    return [
        Module(file_id=file_id, lines=source.lines),
        *(Finding(file_id=file_id, kind=kind, name=name, line=line) for kind, name, line in source.names),
    ]


# ---- its tasks

# A file that does not parse now will not parse in a minute: its job fails at once. Anything else is tried again after a
# quarter of a second, then half, and so on: a file that cannot be read (a network drive that is away, a save under way);
# and on Python 3.11 now and then a SystemError, because its parser is not quite safe with threads (CPython gh-106905).
RETRIES = RetryPolicy(base=0.25, factor=2, no_retry=(SyntaxError, ValueError))


@task(queue="index", max_attempts=6, retry=RETRIES)
def index_file(ctx: JobContext, file_id: int) -> None:
    """Index one file.

    What is added to `ctx.session` commits together with the job's completion, or not at all: a worker that is killed
    between these lines leaves nothing behind, and the job runs again elsewhere.
    """
    file = ctx.session.get_one(SourceFile, file_id)
    ctx.session.add_all(rows_for(file_id, examine(file.path)))


@task(queue="index", max_attempts=6, retry=RETRIES)
async def index_file_async(ctx: AsyncJobContext, file_id: int) -> None:
    """The handler for an application that is written with `async def`; `ctx.session` is an AsyncSession.

    Reading and parsing would hold up the event loop, up to half a second for a large file, and with it the other
    handlers of this process: so they go to a thread.
    """
    file = await ctx.session.get_one(SourceFile, file_id)
    ctx.session.add_all(rows_for(file_id, await asyncio.to_thread(examine, file.path)))


# ---- its producer: a row and its job in one transaction, both or neither


def add_file(session: Session, path: str) -> None:
    """Write the row of a file and enqueue its job; the caller commits."""
    file = SourceFile(path=path)
    session.add(file)
    session.flush()  # file.id is known from here on
    session.add(enqueue(index_file, file.id))


async def add_file_async(session: AsyncSession, path: str) -> None:
    """The same with an AsyncSession."""
    file = SourceFile(path=path)
    session.add(file)
    await session.flush()
    session.add(enqueue(index_file_async, file.id))
