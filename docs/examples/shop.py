# shop.py
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

from fastapi import FastAPI
from sqlalchemy import func
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import AsyncJobContext, enqueue, task

engine = create_async_engine(os.environ["SA_JOBQUEUE_DATABASE_URL"])


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]
    receipt_sent_at: Mapped[datetime | None]


@task(queue="mail", max_attempts=5)
async def send_receipt(ctx: AsyncJobContext, order_id: int) -> None:
    order = await ctx.session.get_one(Order, order_id)
    ctx.logger.info("a receipt over %d for order %d", order.total, order_id)
    order.receipt_sent_at = func.now()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def buy(total: int) -> dict[str, int]:
    async with AsyncSession(engine, expire_on_commit=False) as session:
        order = Order(total=total)
        session.add(order)
        await session.flush()  # gives the order its id
        session.add(enqueue(send_receipt, order.id))  # add does no I/O
        await session.commit()  # the order and its job, or neither
    return {"order": order.id}


@app.get("/orders/{order_id}")
async def look(order_id: int) -> dict[str, bool]:
    async with AsyncSession(engine) as session:
        order = await session.get_one(Order, order_id)
        return {"receipt": order.receipt_sent_at is not None}
