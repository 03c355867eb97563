"""A process that moves jobs to the archive, to be killed: `python -m tests.support.mover URL PAGE [before-commit | in-steps]`.

It prints a line for each page. With `before-commit` it does so while the page's transaction is open, and waits then to be killed. With
`in-steps` it reads a line before the next page.
"""

from __future__ import annotations

import sys

from sqlalchemy import create_engine

from sa_jobqueue.sql.store import default_store
from sa_jobqueue.util.urls import database_url


def main(url: str, page: str, mode: str = "") -> None:
    with create_engine(database_url(url)).connect() as connection:
        moved = 1
        while moved:
            with connection.begin():
                moved = default_store.prune(connection, limit=int(page), archive=True).jobs
                if mode == "before-commit":
                    print(moved, flush=True)
                    sys.stdin.read()
            print(moved, flush=True)
            if mode == "in-steps":
                sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
