"""The dashboard's application: routes, pages, actions and answers."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from ..models import Job, JobMixin, companions_of, is_own, schema_of
from ..rules.words import jobs_of as count_of_jobs
from ..sql.edit import record_action
from ..tasks.registry import Registry
from .access import Access, Who, access_of
from .actions import Done, PageAction
from .actions.jobs import CHANGE_ACTIONS, JOB_ACTIONS, UNDO_ACTIONS
from .actions.limits import LIMIT_ACTIONS, QUEUE_ACTIONS
from .actions.schedules import SCHEDULE_ACTIONS, WORKER_ACTIONS
from .actions.workflows import WORKFLOW_ACTIONS
from .database import Anywhere, Database
from .pages import ANSWERS, PAGES, as_json, openapi
from .pages.database import FINDING_ACTIONS, alarms_of, examined
from .pages.errors import ERROR_ACTIONS, MARK_ACTIONS, marks_of
from .pages.jobs import JOBS, as_csv
from .pages.questions import QUESTION_ACTIONS
from .pages.registry import REGISTRY_ACTIONS
from .query import Query, read_form
from .refusals import BadForm, BadInput, Refusal
from .render import Renderer, local_path
from .request import Elsewhere, FormatArgs, Later, LinkSubject, Missing, Options, Page, PageContext
from .security import CSP, Guard
from .shared import Shared

#: Seconds after which an action of many transactions shows its progress.
_PATIENCE = 2.0
_NUMBERS = range(2**62)
#: The seconds since the last transaction that a standby has replayed.
_BEHIND = sa.select(
    sa.func.extract("epoch", sa.func.clock_timestamp() - sa.func.pg_last_xact_replay_timestamp()).cast(sa.Float)
).where(sa.func.pg_is_in_recovery())
#: The fields that a viewer fills in.
_TYPED = frozenset((
    "task", "queue", "tag", "subject", "key", "error", "newer_than", "args", "payload", "name", "who", "from", "to", "running", "rate", "burst",
    "weight", "key_running", "key_rate", "key_burst", "reason", "priority", "run_at", "worker", "not_queue", "not_task", "not_error", "attempts", "took", "created_after", "created_before",
    "ended_after", "ended_before",
))  # fmt: skip
#: An answer depends on these headers of the request.
_VARY = {"vary": "Accept, HX-Request"}
_WEIGHT = re.compile(r"[01](\.\d{0,3})?")
#: The most characters of a name and of a change in words in an address, and of a value in the audit.
_NAME, _CHANGE, _LONGEST = 200, 500, 50_000


@dataclass(frozen=True, slots=True)
class _Answer:
    """The values of a page, and its live part as HTML, which viewers with equal requests and rights share."""

    values: dict[str, Any]
    later: list[Later] = field(default_factory=list[Later])
    parts: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """By the address at which the dashboard is mounted, and the path."""


class Site:
    """Pages and actions over one database."""

    def __init__(self, database: Database, who: Who | None, options: Options) -> None:
        self._database, self._who, self._options = database, who, options
        self._renderer = Renderer(options.title)
        self._shared: Shared[_Answer] = Shared()

    def application(self) -> Starlette:
        """The routes. The first page is at the root."""
        routes: list[Route | Mount] = [
            *(Route(page.path, self._shows(page), methods=["GET"], name=page.name) for page in PAGES),
            Route("/act/{action}", self._act, methods=["POST"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            Route("/status", self._status, methods=["GET"]),
            Mount("/static", _Static(packages=[("sa_jobqueue.dashboard", "static")]), name="static"),
            Route("/{rest:path}", self._missing, methods=["GET"]),
        ]
        for route in routes:
            route.path_regex = re.compile(route.path_regex.pattern, re.DOTALL)  # names may have line breaks
        return Starlette(routes=routes)

    # ---- pages

    def _shows(self, page: Page) -> Any:
        async def show(request: Request) -> Response:
            # Without the name, because viewers with equal rights share what is read and rendered.
            access = (await access_of(self._who, request)).named("")
            if not self._may_see(page, access):
                if page is PAGES[0] and access.may("read"):
                    return _redirect(request, self._home(access))
                return self._forbidden(request, access)
            query, wanted = Query(), _wanted(request, page)
            if wanted != "html" and page.name not in (ANSWERS if wanted == "json" else (JOBS.name,)):
                text = f"This page has no {wanted.upper()}. /openapi.json names those that have JSON."
                return _json({"error": text}, 406)
            try:
                query = Query.parse(request.url.query)
                query = query.but(**{"as": "csv" if wanted == "csv" else ()})
                answer = await self._read(page, query, access, request.path_params)
            except Elsewhere as other:
                return _redirect(request, quote(other.path), other.query)
            except (BadInput, Missing, Refusal) as error:
                return self._notice(request, access, page, query, error)
            address = f"{request.scope.get('root_path', '')}{page.path}"
            if wanted == "csv":
                shown = _csv(answer.values, query, address)
            elif wanted == "json":
                shown = _json(as_json(page, answer.values, query, address))
            else:
                template, parts = f"pages/{page.name}.html", answer.parts
                shown = self._html(request, access, template, 200, page=page, query=query, parts=parts, **answer.values)
            if answer.later:
                shown.background = BackgroundTask(self._read_later, answer.later)
            return shown

        return show

    async def _read_later(self, later: list[Later]) -> None:
        """Read what a page took from older answers, once its viewer has the page. The next page has it, or tries again."""
        with suppress(Refusal):
            while later:
                await self._database.read(later.pop())

    async def _read(self, page: Page, query: Query, access: Access, path: Mapping[str, Any]) -> _Answer:
        """Read the page's values, once for all viewers with equal requests and rights within a second."""

        async def read() -> _Answer:
            def do(connection: sa.Connection) -> _Answer:
                context = PageContext(connection, query, access, self._options, dict(path))
                return _Answer(page.read(context), context.later)

            return await self._database.read(do)

        if access.where is not None:
            return await read()
        # The rights are part of the key, because they decide what may be searched.
        scope = (None if access.queues is None else frozenset(access.queues), frozenset(access.can))
        return await self._shared.get((page.name, tuple(path.items()), str(query), scope), read)

    def _may_see(self, page: Page, access: Access) -> bool:
        hidden = (page.adds_up and access.is_partial) or (page.of_all_queues and access.queues is not None)
        return access.may("read") and not hidden

    def _home(self, access: Access) -> str:
        """The first page that the viewer may see."""
        return next((page.path for page in PAGES if page.in_menu and self._may_see(page, access)), PAGES[-1].path)

    async def _status(self, request: Request) -> Response:
        """The number of the doctor's unacknowledged problems, and the seconds that a replica is behind; null: unknown, or it is no replica."""
        access = await access_of(self._who, request)
        if not access.may("read") or not access.sees_all:
            return self._forbidden(request, access)

        def read(connection: Any) -> _Answer:
            context = PageContext(connection, Query(), access, self._options)
            alarms = alarms_of(examined(context, stale=False).findings, marks_of(context))
            problems = sum(alarm.finding.level == "problem" and alarm.acknowledged is None for alarm in alarms)
            return _Answer({"problems": problems, "behind": connection.scalar(_BEHIND)})

        try:
            return JSONResponse((await self._shared.get("status", lambda: self._database.read(read))).values)
        except Refusal as refusal:
            return JSONResponse({"problems": None, "behind": None}, refusal.status)

    # ---- actions

    async def _act(self, request: Request) -> Response:
        access = await access_of(self._who, request)
        action = ACTIONS.get(request.path_params["action"])
        if not access.may("read") or (action is not None and not access.may(action.needs)):
            return self._forbidden(request, access, "You may not do this.")
        if action is None:
            return await self._missing(request)
        query = Query()
        try:
            query = await read_form(request)
            if await self._must_confirm(action, query, access):
                return await self._confirm(request, access, action, query)
            done, rest, entry = await self._do(request, action, query, access)
            if done.view is not None:
                values = await done.view(self._database.engine)
                return self._html(request, access, f"pages/{action.name}.html", 200, query=query, **values)
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone and reads no answer
        except BadForm as bad:
            return self._html(request, access, f"pages/{action.name}.html", 400, query=query, **bad.values)
        except (BadInput, Missing, Refusal) as error:
            return self._notice(request, access, None, query, error)
        if rest is not None:
            return self._html(request, access, "more.html", 200, action=action, fields=rest.pairs(), done=done)
        path, _, arguments = (local_path(query.one("next")) or self._home(access)).partition("?")
        variants = {name: number or None for name, number in done.variants.items()}
        back = Query.parse(arguments).but(
            did=action.name, n=done.count, left=done.left or None, of=done.of or None, change=done.change or None, entry=entry,
            undo=done.undo or None, **variants,
        )  # fmt: skip
        return _redirect(request, done.to or path, back)

    async def _must_confirm(self, action: PageAction, query: Query, access: Access) -> bool:
        if action.count is None:
            return False
        if query.one("confirmed") == "yes":
            return (text := action.to_type(query)) is not None and query.one("typed") != text
        if action.careful or not query.one("id"):
            return True
        asks = action.asks
        if asks is None:
            return False
        # On the primary, like the action: a standby may be away or behind.
        return await self._database.act(lambda connection: asks(PageContext(connection, query, access, self._options)))

    async def _confirm(self, request: Request, access: Access, action: PageAction, query: Query) -> Response:
        """Ask for confirmation, with the number that the action's own WHERE finds now."""
        count = action.count
        assert count is not None

        def read(connection: sa.Connection) -> tuple[int, str]:
            context = PageContext(connection, query, access, self._options)
            return count(context), action.named(context)

        number, of = await self._database.read(read)
        fields = query.but(confirmed="yes", typed=()).pairs()
        back = local_path(query.one("next")) or self._home(access)
        shown: dict[str, Any] = {
            "fields": fields, "number": number, "of": of, "target": query.only(*action.target), "next": back, "typed": action.to_type(query),
            "wrong": query.one("typed") if query.one("confirmed") == "yes" else None,
        }  # fmt: skip
        return self._html(request, access, "confirm.html", 200, action=action, **shown)

    async def _do(
        self, request: Request, action: PageAction, query: Query, access: Access
    ) -> tuple[Done, Query | None, int | None]:
        """Perform the action, each part in a transaction of its own with its row of the audit.

        Returns the rest of a long action as a form; and the id of the first of these rows, the action's number.
        """
        until = monotonic() + _PATIENCE
        who = access.who or (f"someone at {request.client.host}" if request.client else "someone")
        for name in action.target:
            query.text(name, _LONGEST)
        target = query.only(*action.target).as_dict()
        if "args" in target:
            target["args"] = ["…"]  # readers of the audit may not be allowed to see arguments
        count, left, *others = (query.number(name, 0, _NUMBERS) for name in ("count", "left", *action.variants))
        variants = dict(zip(action.variants, others, strict=True))
        first = query.id("entry") if query.one("after") else None
        audit = companions_of(self._options.job).audit
        while True:

            def do(connection: Any, query: Query = query, first: int | None = first) -> tuple[Done, int | None]:
                done = action.do(PageContext(connection, query, access, self._options, {}))
                if not done.count:
                    return done, None
                # The form names the first entry, which must belong to this viewer and action.
                is_own = sa.select(audit.id).where(audit.id == first, audit.who == who, audit.action == action.name)
                part_of = {"part_of": [str(first)]} if first and connection.scalar(is_own) else {}
                about = {**(done.target or target), **done.more, **part_of}
                entry = record_action(action.name, who=who, target=about, count=done.count, job=self._options.job)
                return done, connection.scalar(entry.returning(audit.id))

            try:
                done, entry = await self._database.act(do)
            except Refusal as refusal:
                if not count:
                    raise
                before = f"Done before that: {_units(action, count)}."
                raise Refusal(refusal.what, f"{refusal.detail} {before}".strip()) from refusal
            count, left = count + done.count, left + done.left
            variants = {name: number + done.variants.get(name, 0) for name, number in variants.items()}
            total = replace(done, count=count, left=left, variants=variants)
            first = first or entry
            if done.after is None:
                return total, None, first
            query = query.but(
                after=done.after, count=count, left=left, confirmed="yes", entry=first, undo=done.undo, **variants
            )
            if monotonic() > until:
                return total, query, first

    # ---- answers

    async def _missing(self, request: Request) -> Response:
        access = await access_of(self._who, request)
        if not access.may("read"):
            return self._forbidden(request, access)
        return self._notice(request, access, None, Query(), Missing("There is no such page."))

    async def _openapi(self, request: Request) -> Response:
        access = await access_of(self._who, request)
        if not access.may("read"):
            return self._forbidden(request, access)
        return _json(openapi(self._options.title, request.scope.get("root_path", "")))

    def _forbidden(self, request: Request, access: Access, text: str = "You may not see this page.") -> Response:
        if self._who is None:
            text = "The dashboard is closed. Give it access=..., a function that returns the rights of a request."
        if _wanted(request) != "html":
            return _json({"error": text}, 403)
        return self._html(request, access, "forbidden.html", 403, text=text)

    def _notice(
        self, request: Request, access: Access, page: Page | None, query: Query, error: BadInput | Missing | Refusal
    ) -> Response:
        status = error.status
        if isinstance(error, Refusal):
            if error.what == "away" and (access.is_partial or access.queues is not None):
                error = Refusal("away")  # a tenant must not learn where the database is
            if error.what == "slow" and request.method == "POST":
                status = 409  # 200 is for a page that was given up; an action that was given up has failed
        if _wanted(request) != "html":
            text = f"{error.words} {error.detail}".strip() if isinstance(error, Refusal) else str(error)
            return _json({"error": text}, 503 if status == 200 else status)
        mend = _fields_to_correct(error, query) if isinstance(error, BadInput) else []
        shown = {"error": error, "mend": mend}
        return self._html(request, access, "notice.html", status, page=page, query=query, parts={}, **shown)

    def _html(
        self, request: Request, access: Access, template: str, status: int, *, page: Page | None = None, query: Query | None = None,
        parts: dict[tuple[str, str], str] | None = None, **values: Any,
    ) -> Response:  # fmt: skip
        """Render a template. `parts`: if the page's script asks for the live part, return that alone, from these if it is there."""
        fragment = parts is not None and request.headers.get("hx-request") == "true"
        # The page's script accepts no answer without this header, because a login page may answer instead.
        headers = {**_VARY, **({"sa-jobqueue-part": "yes"} if fragment else {})}
        root = request.scope.get("root_path", "")
        path = request.scope["path"].removeprefix(root)  # request.url ends at a "?" in a name
        if parts and fragment and (root, path) in parts:
            return HTMLResponse(parts[root, path], status, headers)
        plain = (Query() if query is None else query).but(**dict.fromkeys(_OF_RESULTS, ()))
        # Links from other sites must not claim results.
        is_own_link = request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
        results = _results(query) if is_own_link else []
        shown: dict[str, Any] = {
            "page": page,
            "all_actions": ACTIONS,
            "path": path,
            "method": request.method.lower(),
            "query": plain,
            "here": f"{quote(path)}?{plain}" if plain else quote(path),
            "access": access,
            "sees_all": access.may("read") and access.sees_all,
            "home": self._home(access),
            "has_replica": self._database.has_replica,
            "menu": [item for item in PAGES if item.in_menu and self._may_see(item, access)],
            "results": results,
            "undo": _undo(query, access) if results and query else None,
            "entry": entry if query and (entry := query.one("entry")).isdecimal() and results else "",
            **values,
        }
        html = self._renderer.page(template, shown, root=root, fragment=fragment)
        if parts is not None and fragment:
            parts[root, path] = html
        return HTMLResponse(html, status, headers)


def _redirect(request: Request, path: str, query: Query | None = None) -> Response:
    return RedirectResponse(f"{request.scope.get('root_path', '')}{path}{f'?{query}' if query else ''}", 303, _VARY)


def _wanted(request: Request, page: Page | None = None) -> str:
    """The kind of answer that the request prefers: "json" or "csv" if it names that, else "html"; or "csv" if it is for the list as CSV."""
    weights: dict[str, float] = {}
    for accepted in request.headers.get("accept", "").lower().split(","):
        kind, *parameters = (part.strip() for part in accepted.split(";"))
        given = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        weights[kind] = float(given) if _WEIGHT.fullmatch(given) else 0.0
    kinds = {"json": "application/json", "csv": "text/csv"}
    best = max(kinds, key=lambda kind: weights.get(kinds[kind], 0.0))
    weight = weights.get(kinds[best], 0.0)
    if weight > 0 and weight >= weights.get("text/html", 0.0):
        return best
    return "csv" if page is JOBS and request.query_params.get("as") == "csv" else "html"


def _csv(values: Mapping[str, Any], query: Query, address: str) -> Response:
    """The list of jobs as CSV. If there may be more jobs, a header leads to them, and the name of the file tells it."""
    name, place = values["next"]
    part = "-part" if place is not None or values["is_cut"] else ""
    headers = {**_VARY, "content-disposition": f'attachment; filename="jobs{part}.csv"'}
    if place is not None:
        headers["link"] = f'<{quote(address)}?{query.but(**{name: place})}>; rel="next"'
    return Response(as_csv(values, query), 200, headers, "text/csv")


def _json(value: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(value), status, _VARY, "application/json")


def _results(query: Query | None) -> list[str]:
    """Texts about the results of the last action, whose name and numbers are in the address."""
    action = None if query is None else ACTIONS.get(query.one("did"))
    if query is None or action is None:
        return []
    try:
        count, left, *others = (query.number(name, 0, _NUMBERS) for name in ("n", "left", *action.variants))
    except BadInput:
        return []
    results = zip((action.done, *action.variants.values()), (count - sum(others), *others), strict=True)
    of = query.one("of")[:_NAME]
    lines = [text.format(n=_units(action, number), of=of) for text, number in results if number > 0]
    lines = lines or ["Nothing was changed."]
    lines += [query.one("change")[:_CHANGE]] if query.one("change") else []
    if left:
        lines.append(f"Not changed, because {action.left}: {_units(action, left)}.")
    return lines


def _undo(query: Query, access: Access) -> tuple[str, list[tuple[str, str]]] | None:
    """The action that undoes the last action, and its fields; None: there is none, or the viewer may not do it."""
    action = ACTIONS[query.one("did")]
    undo = ACTIONS.get(action.undo and (query.one("undo") or action.undo))
    asked = query.number("asked", 0, _NUMBERS)  # a running job that was asked to stop cannot be told to go on
    if undo is None or not access.may(undo.needs) or query.number("n", 0, _NUMBERS) <= asked:
        return None
    return undo.name, [("number", query.one("entry"))]


def _fields_to_correct(bad: BadInput, query: Query) -> list[tuple[str, str, bool]]:
    """The fields of a form to be corrected and sent again: name, value, and whether it is shown."""
    pairs = query.pairs()
    if bad.there:
        return []  # a new form shows the current limits
    if " " not in bad.name and bad.name not in query:
        if bad.value:
            return []  # it is not a field of this form
        pairs.insert(0, (bad.name, ""))
    fields = [(name, value, name in _TYPED or name == bad.name) for name, value in pairs]
    return fields if any(is_shown for *_, is_shown in fields) else []


def _units(action: PageAction, number: int) -> str:
    return count_of_jobs(number) if action.unit == "job" else f"{number:,} {action.unit}{'' if number == 1 else 's'}"


class _Static(StaticFiles):
    """Our own files, whose addresses change with the release."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["cache-control"] = "public, max-age=604800"
        return answer


#: All actions, by name, in the order in which the audit lists them.
ACTIONS: Mapping[str, PageAction] = {
    action.name: action for action in (
        *JOB_ACTIONS, *SCHEDULE_ACTIONS, *WORKFLOW_ACTIONS, *QUEUE_ACTIONS, *LIMIT_ACTIONS, *WORKER_ACTIONS, *CHANGE_ACTIONS,
        *ERROR_ACTIONS, *MARK_ACTIONS, *REGISTRY_ACTIONS, *FINDING_ACTIONS, *UNDO_ACTIONS, *QUESTION_ACTIONS,
    )
}  # fmt: skip
#: The values in an address that describe the results of the action that led to it.
_OF_RESULTS = (
    "did", "n", "left", "of", "change", "entry", "undo", *{name for action in ACTIONS.values() for name in action.variants},
)  # fmt: skip


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
    registry: Registry | None = None,
    csp: str | None = CSP,
    trusted_origins: Collection[str] = (),
) -> ASGIApp:
    """The dashboard as an ASGI application, to be mounted in another application or served alone.

    Args:
        engine: An Engine or an AsyncEngine of the database with the jobs. Its pool should have room for five connections.
        access: Returns the rights and the name of each request's sender. Without it the answer is 403.
        read_from: An engine of a replica, from which pages are read. Actions use `engine`.
        title: The title of the pages.
        job: The mapped class of a job table of your own.
        schema: The schema of the tables, if the engine's `schema_translate_map` does not map it.
        format_args: Called as `format_args(task, part, value)` for the "args", "meta" and "result" of each job that is shown; its
            result is shown instead of the value.
        link_subject: Returns the address of the page of the row that a job is about, or None.
        registry: The tasks whose jobs may be enqueued by a form, and tried if they say `dry_run=True`. None: neither is offered.
        csp: The Content-Security-Policy of each answer; None: the application sends its own.
        trusted_origins: Origins such as "https://ops.example.com" from which changes are accepted, if a proxy rewrites the host.

    Raises ConfigurationError if `engine` or `read_from` is not an engine.
    """
    database = Database(engine, read_from, schema=schema, own=schema_of(job) if is_own(job) else None)
    options = Options(title=title, job=job, format_args=format_args, link_subject=link_subject, registry=registry)
    return Guard(Site(database, access, options).application(), csp=csp, trusted_origins=trusted_origins)
