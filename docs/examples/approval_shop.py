# approval_shop.py
"""An order is shipped once a person has clicked on Yes."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from fastapi import FastAPI
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import AsyncJobContext, Callbacks, Registry, Worker, enqueue, task
from sa_jobqueue.dashboard import callbacks

URL = os.environ["SA_JOBQUEUE_DATABASE_URL"]
engine = create_async_engine(URL)
keys = os.environ["HOOKS_KEYS"].split()  # secrets, as `openssl rand -hex 32` prints them
registry = Registry(callbacks=Callbacks(url="http://127.0.0.1:8000/hooks", keys=keys))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "approval_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    state: Mapped[str] = mapped_column(default="new")
    link: Mapped[str | None]


async def send_link(order_id: int, link: str) -> None:
    """Where a shop would send a mail."""
    async with AsyncSession(engine) as session:
        order = await session.get_one(Order, order_id)
        order.link = link
        await session.commit()


@task(registry=registry)
async def ship(ctx: AsyncJobContext, order_id: int) -> None:
    link = await ctx.callback_url("approve", expires_in=timedelta(days=3))
    await ctx.step("ask", send_link, order_id, link)
    is_approved = await ctx.wait_signal(link.signal, bool, question=f"Ship order {order_id}?")
    order = await ctx.session.get_one(Order, order_id)
    order.state = "shipped" if is_approved else "rejected"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    worker = Worker(URL, {"default": 4}, registry=registry)
    serving = asyncio.create_task(worker.serve())
    yield
    worker.stop()
    await serving
    await engine.dispose()


app = FastAPI(lifespan=lifespan)
app.mount("/hooks", callbacks(engine, registry=registry))


@app.post("/orders", status_code=202)
async def buy(total: int) -> dict[str, int]:
    async with AsyncSession(engine, expire_on_commit=False) as session:
        order = Order(total=total)
        session.add(order)
        await session.flush()
        session.add(enqueue(ship, order.id))
        await session.commit()
        return {"order": order.id}


@app.get("/orders/{order_id}")
async def look(order_id: int) -> dict[str, str | None]:
    async with AsyncSession(engine) as session:
        order = await session.get_one(Order, order_id)
        return {"state": order.state, "link": order.link}
