"""A process that moves jobs to the archive, to be killed: `python -m tests.support.mover URL PAGE [before-commit]`.

It says a line for each page. With `before-commit` it says it while the page's transaction is open, and waits then to be killed.
"""

from __future__ import annotations

import sys

from sqlalchemy import create_engine

from sa_jobqueue.store import default_store
from sa_jobqueue.urls import database_url


def main(url: str, page: str, mode: str = "") -> None:
    with create_engine(database_url(url)).connect() as connection:
        moved = 1
        while moved:
            with connection.begin():
                moved = default_store.prune(connection, limit=int(page), archive=True).jobs
                if mode:
                    print(moved, flush=True)
                    sys.stdin.read()
            print(moved, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
