# sqlmodel_heroes.py
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from sqlmodel import Field, Session, SQLModel, select

from sa_jobqueue import JobContext, default_registry, enqueue, task

engine = create_engine(os.environ["SA_JOBQUEUE_DATABASE_URL"])
sessions = sessionmaker(engine, class_=Session)
default_registry.sessionmaker = sessions  # so ctx.session has `exec`


class Hero(SQLModel, table=True):
    id: int | None = Field(default=None, primary_key=True)
    name: str


@task
def rename(ctx: JobContext, hero: Hero, name: str) -> None:
    namesakes = ctx.session.exec(select(Hero).where(Hero.name == name)).all()
    hero.name = f"{name} {len(namesakes) + 1}" if namesakes else name


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    SQLModel.metadata.create_all(engine)
    yield


def get_session() -> Iterator[Session]:
    with sessions() as session:
        yield session


Db = Annotated[Session, Depends(get_session)]
app = FastAPI(lifespan=lifespan)


@app.post("/heroes", status_code=202)
def invent(name: str, session: Db) -> dict[str, int]:
    hero = Hero(name="nameless")
    job = enqueue(rename, hero, name)
    session.add_all([hero, job])
    session.commit()  # the hero and the job, or neither
    return {"hero": hero.id, "job": job.id}


@app.get("/heroes/{hero_id}")
def look(hero_id: int, session: Db) -> dict[str, str]:
    return {"name": session.get_one(Hero, hero_id).name}
