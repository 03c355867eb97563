"""A shop that is traced from the request to the last job: a web application, and its tasks.

`hold` waits for the file that TRACED_GO names, and says in the one that TRACED_SAID names that it does.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from fastapi import FastAPI
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import JobContext, RetryPolicy, enqueue, task

app = FastAPI()


@app.post("/orders")
def order() -> dict[str, int]:
    """Enqueue a job within a request."""
    engine = create_engine(os.environ["SA_JOBQUEUE_DATABASE_URL"])
    with Session(engine) as session:
        job = enqueue(fulfil)
        session.add(job)
        session.commit()
        id = job.id
    engine.dispose()
    return {"id": id}


@task(name="fulfil", queue="shop", retry=RetryPolicy(base=0.01, jitter=0))
def fulfil(ctx: JobContext) -> None:
    """The first attempt fails, the second waits to be killed, and is made again by another worker."""
    if ctx.attempt == 1:
        raise ConnectionError("the warehouse does not answer")
    if not Path(os.environ["TRACED_GO"]).exists():
        Path(os.environ["TRACED_SAID"]).touch()
        while True:
            time.sleep(60)
    ctx.session.add(enqueue(receipt))


@task(name="receipt", queue="shop")
async def receipt() -> None:
    """The child."""
