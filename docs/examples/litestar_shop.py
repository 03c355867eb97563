# litestar_shop.py
import os

from advanced_alchemy.base import BigIntAuditBase
from advanced_alchemy.extensions.litestar import AsyncSessionConfig, SQLAlchemyAsyncConfig, SQLAlchemyPlugin
from advanced_alchemy.repository import SQLAlchemyAsyncRepository
from litestar import Litestar, get, post
from litestar.di import Provide
from litestar.exceptions import NotFoundException
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped

from sa_jobqueue import Job, JobRead, enqueue, task

config = SQLAlchemyAsyncConfig(
    connection_string=os.environ["SA_JOBQUEUE_DATABASE_URL"],
    session_config=AsyncSessionConfig(expire_on_commit=False),
    create_all=True,
)


class Order(BigIntAuditBase):
    __tablename__ = "litestar_order"

    total: Mapped[int]
    receipt: Mapped[str | None]


class Orders(SQLAlchemyAsyncRepository[Order]):
    model_type = Order


@task(queue="mail")
async def send_receipt(order: Order) -> None:
    order.receipt = f"{order.total} received"  # commits with the job


async def provide_orders(db_session: AsyncSession) -> Orders:
    return Orders(session=db_session)


@post("/orders")
async def buy(total: int, orders: Orders) -> dict[str, int]:
    order = await orders.add(Order(total=total))
    job = enqueue(send_receipt, order)
    orders.session.add(job)
    await orders.session.commit()  # the order and its job, or neither
    return {"order": order.id, "job": job.id}


@get("/orders/{order_id:int}")
async def look(order_id: int, orders: Orders) -> dict[str, str | None]:
    order = await orders.get(order_id)
    return {"receipt": order.receipt}


@get("/jobs/{job_id:int}")
async def status(job_id: int, db_session: AsyncSession) -> dict[str, object]:
    if (job := await db_session.get(Job, job_id)) is None:
        raise NotFoundException
    return JobRead.model_validate(job).model_dump(mode="json", include={"id", "status", "attempt"})


app = Litestar(
    [buy, look, status],
    dependencies={"orders": Provide(provide_orders)},
    plugins=[SQLAlchemyPlugin(config=config)],
)
