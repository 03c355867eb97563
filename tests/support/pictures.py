"""Takes the pictures of the dashboard for the docs and the README, in a database that is filled for it and dropped afterwards.

    python -m tests.support.pictures

Needs playwright, /usr/bin/chromium and the embedded PostgreSQL. The scene is the same each time, but for its dates and ids of workers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, delete, text, update

from sa_jobqueue import Job, Schedule
from sa_jobqueue.dashboard import Access, dashboard
from sa_jobqueue.embedded import embedded_url
from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.models import WorkerRow, WorkflowRow
from tests.support.browsers import chromium, served
from tests.support.scenes import REGISTRY, Scene, fill

__all__ = ["FOLDER", "PICTURES", "Picture", "main"]

FOLDER = Path(__file__).parents[2] / "docs/howto/pictures"
WIDTH = 1_280


@dataclass(frozen=True, slots=True)
class Picture:
    """A page, and what of it is to be seen."""

    name: str
    path: str
    """With the name of a field of the scene in braces."""
    until: str
    """A selector: the picture ends below the first such element."""
    colours: str = "light"
    below: int = 20
    """Pixels between that element and the edge."""

    def file(self, folder: Path) -> Path:
        """Where it is kept."""
        return folder / f"dashboard-{self.name}.png"


PICTURES: Sequence[Picture] = (
    Picture("overview", "/", ".cards:has([data-chart])"),
    Picture("jobs", "/jobs?queue=mail", "tbody tr:nth-child(11)", below=0),
    Picture("job", "/jobs/{job}", ".attempt", below=10),
    Picture("workflow", "/workflows/{workflow}", ".nodes tbody tr:nth-child(12)", "dark", below=0),
    Picture("limits", "/limits", "#owners-title + * table"),
)


def _calm(connection: Connection, scene: Scene) -> None:
    """Take out what is in the scene for tests alone: a page that is full of alarms shows nothing else."""
    knows = {
        f"shop.{name}": {"queue": "default", "timeout": None, "aliases": []}
        for name in ("send_receipt", "charge", "render_invoice", "report", "clean_up", "close_month", "sync_stock", "send_newsletter")
    }  # fmt: skip
    served = ["default", "mail", "payments", "reports"]
    connection.execute(update(WorkerRow).where(WorkerRow.host != "batch-1").values(tasks=knows, queues=served))
    connection.execute(update(Schedule).values(error=None))
    connection.execute(delete(Job).where(Job.workflow_id == scene.large_workflow))
    connection.execute(delete(WorkflowRow).where(WorkflowRow.id == scene.large_workflow))


@contextmanager
def filled() -> Iterator[tuple[Engine, Scene]]:
    """An engine of a database with the scene."""
    name = "sa_jobqueue_pictures"
    server = create_engine(embedded_url("postgres"), isolation_level="AUTOCOMMIT")
    drop = text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    with server.connect() as connection:
        connection.execute(drop)
    url = embedded_url(name)
    upgrade_database(url)
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            scene = fill(connection)
            _calm(connection, scene)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ANALYZE"))
        yield engine, scene
    finally:
        engine.dispose()
        with server.connect() as connection:
            connection.execute(drop)
        server.dispose()


def take(picture: Picture, browser: Any, url: str, scene: Scene, folder: Path) -> None:
    """Write the file of one picture."""
    context = browser.new_context(
        viewport={"width": WIDTH, "height": 1_600}, color_scheme=picture.colours, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(url + picture.path.format(**{name: getattr(scene, name) for name in Scene.__slots__}))
    page.wait_for_load_state("networkidle")
    box = page.locator(picture.until).first.bounding_box()
    height = round(box["y"] + box["height"]) + picture.below
    page.screenshot(path=str(picture.file(folder)), clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
    context.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Take all of them, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*(one.name for one in PICTURES), []], help="these only")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to (default: %(default)s)")
    said = parser.parse_args(arguments)
    said.folder.mkdir(parents=True, exist_ok=True)
    access = Access.ADMIN.named("ada@example.com")
    try:
        with (
            chromium() as browser,
            filled() as (engine, scene),
            served(dashboard(engine, access=lambda _: access, title="shop", registry=REGISTRY)) as url,
        ):
            for picture in PICTURES:
                if not said.names or picture.name in said.names:
                    take(picture, browser, url, scene, said.folder)
                    print(picture.file(said.folder))
    except pytest.skip.Exception as missing:
        raise SystemExit(str(missing)) from None


if __name__ == "__main__":
    main()
