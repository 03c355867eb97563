"""Putting a dashboard together."""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp

from ..models import Job, JobMixin, is_own, schema_of
from .access import Who
from .change_deeds import CHANGE_DEEDS
from .database import Anywhere, Database
from .error_groups import ERROR_DEEDS
from .job_deeds import JOB_DEEDS
from .limit_deeds import LIMIT_DEEDS
from .look import FormatArgs, LinkSubject, Options
from .pages import PAGES
from .queue_deeds import QUEUE_DEEDS
from .schedule_deeds import SCHEDULE_DEEDS
from .security import CSP, Guard
from .site import Site
from .worker_deeds import WORKER_DEEDS
from .workflow_deeds import WORKFLOW_DEEDS

__all__ = ["DEEDS", "dashboard"]

#: All that a form can ask for, by name.
DEEDS = {
    **JOB_DEEDS,
    **CHANGE_DEEDS,
    **ERROR_DEEDS,
    **QUEUE_DEEDS,
    **LIMIT_DEEDS,
    **WORKER_DEEDS,
    **SCHEDULE_DEEDS,
    **WORKFLOW_DEEDS,
}


def dashboard(
    engine: Anywhere,
    *,
    access: Who | None = None,
    read_from: Anywhere | None = None,
    title: str = "Jobs",
    job: type[JobMixin] = Job,
    schema: str | None = None,
    format_args: FormatArgs | None = None,
    link_subject: LinkSubject | None = None,
    csp: str | None = CSP,
    trusted_origins: Collection[str] = (),
) -> ASGIApp:
    """The pages as one ASGI application, to be mounted in another or served alone.

    Args:
        engine: An Engine or an AsyncEngine of the database with the jobs. It is used as it is; its pool should have room for five
            connections.
        access: Says of each request what its sender may do, and who that is. Without it the answer is 403.
        read_from: An engine of a replica, from which pages are read. Actions go to `engine`.
        title: What the pages are called.
        job: The mapped class of a job table of your own.
        schema: Where the tables are, if the engine's `schema_translate_map` does not say it.
        format_args: Called as `format_args(task, part, value)` for the "args", "meta" and "result" of each job that is shown; what it
            returns is shown in place of the value.
        link_subject: Returns the address of the page of the row that a job is about, or None.
        csp: The Content-Security-Policy of each answer; None: the application sends its own.
        trusted_origins: Origins such as "https://ops.example.com" from which changes are accepted, where a proxy rewrites the host.

    Raises ConfigurationError where `engine` or `read_from` is no engine.
    """
    site = Site(
        Database(engine, read_from, schema=schema, own=schema_of(job) if is_own(job) else None),
        access,
        Options(title=title, job=job, format_args=format_args, link_subject=link_subject),
        PAGES,
        DEEDS,
    )
    return Guard(site.application(), csp=csp, trusted_origins=trusted_origins)
