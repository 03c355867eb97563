# fastapi_small.py
import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import fastapi_shop
from fastapi import FastAPI

from sa_jobqueue import Worker


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with fastapi_shop.lifespan(app):
        worker = Worker(os.environ["SA_JOBQUEUE_DATABASE_URL"], {"mail": 10})
        serving = asyncio.create_task(worker.serve())
        yield
        worker.stop()  # running jobs finish
        await serving


app = FastAPI(lifespan=lifespan)
app.mount("/", fastapi_shop.app)
