# documents.py
"""Documents are read, words are counted, a report is made of what could be read."""

import os
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Discard, Failed, Registry, Workflow, task

registry = Registry()


@task(registry=registry, record=True)
def read(name: str) -> str:
    if name.startswith("poison") and not Path("mended").exists():
        raise Discard(f"{name} is no document")
    return f"the text of {name}"


@task(registry=registry, record=True)
async def count_words(text: str) -> int:
    return len(text.split())


@task(registry=registry, record=True)
def report(counts: Sequence[int | Failed]) -> dict[str, int]:
    read_well = [one for one in counts if not isinstance(one, Failed)]
    return {"documents": len(counts), "left out": len(counts) - len(read_well), "words": sum(read_well)}


@task(registry=registry, record=True)
def full_report(counts: Sequence[int]) -> int:
    return sum(counts)


def build(names: Sequence[str]) -> Workflow:
    workflow = Workflow("documents")
    counts = [workflow.then(workflow.add(read, name), count_words) for name in names]
    workflow.gather_partial(counts, report)  # of what is there
    workflow.gather(counts, full_report)  # only of all
    return workflow


if __name__ == "__main__":
    engine = create_engine(os.environ["SA_JOBQUEUE_DATABASE_URL"])
    with Session(engine) as session:
        workflow = build(["a", "b", "poison-1", "c", "poison-2"])
        session.add(workflow)
        session.flush()
        print(workflow.id)
        session.commit()
