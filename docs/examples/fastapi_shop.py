# fastapi_shop.py
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import Job, JobRead, enqueue, task
from sa_jobqueue.dashboard import Access, dashboard
from sa_jobqueue.migrations import check_schema

engine = create_async_engine(os.environ["SA_JOBQUEUE_DATABASE_URL"])


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "fastapi_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    receipt: Mapped[str | None]


@task(queue="mail", max_attempts=5)
async def send_receipt(order: Order) -> None:
    order.receipt = f"{order.total} received"  # commits with the job


async def get_session() -> AsyncIterator[AsyncSession]:
    async with AsyncSession(engine, expire_on_commit=False) as session:
        yield session


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(check_schema)  # `sa-jobqueue migrate` has run
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


Db = Annotated[AsyncSession, Depends(get_session)]
app = FastAPI(lifespan=lifespan, debug=os.environ.get("DEBUG") == "1")


@app.post("/orders", status_code=202)
async def buy(total: int, session: Db) -> dict[str, int]:
    order = Order(total=total)
    job = enqueue(send_receipt, order)
    session.add_all([order, job])
    await session.commit()  # the order and its job, or neither
    return {"order": order.id, "job": job.id}


@app.get("/orders/{order_id}")
async def look(order_id: int, session: Db) -> dict[str, str | None]:
    order = await session.get_one(Order, order_id)
    return {"receipt": order.receipt}


@app.get("/jobs/{job_id}", response_model=JobRead, response_model_include={"id", "status", "attempt"})
async def status(job_id: int, session: Db) -> Job:
    if (job := await session.get(Job, job_id)) is None:
        raise HTTPException(404)
    return job


def who(request: Request) -> Access:
    """What this request may see and do: ask your own users here. Until then, nothing but on your own machine, with DEBUG=1."""
    return Access.READ if app.debug else Access.NONE


app.mount("/ops", dashboard(engine, access=who))
