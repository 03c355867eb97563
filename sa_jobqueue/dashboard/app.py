"""Putting a dashboard together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from ..models import Job, JobMixin, is_own, schema_of
from ..rules.words import jobs_of as count_of_jobs
from ..sql.edit import record_action
from .access import Access, Who, access_of
from .actions import Done, PageAction
from .actions.jobs import CHANGE_ACTIONS, JOB_ACTIONS
from .actions.limits import LIMIT_ACTIONS, QUEUE_ACTIONS
from .actions.schedules import SCHEDULE_ACTIONS, WORKER_ACTIONS
from .actions.workflows import WORKFLOW_ACTIONS
from .database import Anywhere, Database
from .pages import PAGES
from .pages.errors import ERROR_ACTIONS
from .query import Query, read_form
from .refusals import BadInput, Refusal
from .render import Renderer, local_path
from .request import Elsewhere, FormatArgs, LinkSubject, Missing, Options, Page, PageContext
from .security import CSP, Guard
from .shared import Shared

#: Seconds after which an action that takes many transactions answers how far it is.
_PATIENCE = 2.0
_NUMBERS = range(2**62)
#: Fields that a viewer fills in.
_TYPED = frozenset(
    (
        "task", "queue", "tag", "subject", "key", "error", "newer_than", "args", "name", "who", "from", "to", "running", "rate", "burst",
        "weight", "key_running", "key_rate", "key_burst", "reason", "priority", "run_at",
    )
)  # fmt: skip
#: Characters of a name that an address says.
_NAME = 200


class Site:
    """Pages and actions over one database."""

    def __init__(
        self,
        database: Database,
        who: Who | None,
        options: Options,
        pages: Sequence[Page],
        actions: Mapping[str, PageAction],
    ) -> None:
        self._database, self._who, self._options = database, who, options
        self._pages, self._actions = pages, actions
        #: What an address says of the action that led to it.
        self._of_actions = ("did", "n", "left", "of", *{end for action in actions.values() for end in action.apart})
        self._renderer = Renderer(options.title)
        self._shared: Shared[dict[str, Any]] = Shared()

    def application(self) -> Starlette:
        """The routes. The first page is at the root."""
        routes = [
            *(Route(page.path, self._shows(page), methods=["GET"], name=page.name) for page in self._pages),
            Route("/act/{action}", self._act, methods=["POST"]),
            Mount("/static", _Static(packages=[("sa_jobqueue.dashboard", "static")]), name="static"),
            Route("/{rest:path}", self._missing, methods=["GET"]),
        ]
        return Starlette(routes=routes)

    # ---- pages

    def _shows(self, page: Page) -> Any:
        async def show(request: Request) -> Response:
            access = await access_of(self._who, request)
            if not self._may_see(page, access):
                if page is self._pages[0] and access.may("read"):
                    return RedirectResponse(f"{request.scope.get('root_path', '')}{self._home(access)}", 303)
                return self._forbidden(request, access)
            query = Query()
            try:
                query = Query.parse(request.url.query)
                values = await self._read(page, query, access, request.path_params)
            except BadInput as error:
                return self._notice(request, access, page, query, 400, bad=error)
            except Missing as error:
                return self._notice(request, access, page, query, 404, missing=str(error))
            except Elsewhere as other:
                asked = f"?{other.query}" if other.query else ""
                return RedirectResponse(f"{request.scope.get('root_path', '')}{other.path}{asked}", 303)
            except Refusal as refusal:
                return self._notice(request, access, page, query, refusal.status, refusal=refusal)
            fragment = request.headers.get("hx-request") == "true"
            return self._html(
                request, access, f"pages/{page.name}.html", 200, page=page, query=query, fragment=fragment, **values
            )

        return show

    async def _read(self, page: Page, query: Query, access: Access, path: Mapping[str, Any]) -> dict[str, Any]:
        """What the page shows; read once for all that ask for the same within a second."""

        async def read() -> dict[str, Any]:
            return await self._database.read(
                lambda connection: page.read(PageContext(connection, query, access, self._options, dict(path)))
            )

        if access.where is not None:
            return await read()
        # Also what may be done: it decides what may be searched.
        scope = (None if access.queues is None else frozenset(access.queues), frozenset(access.can))
        return await self._shared.get((page.name, tuple(path.items()), str(query), scope), read)

    def _may_see(self, page: Page, access: Access) -> bool:
        hidden = (page.adds_up and access.is_partial) or (page.of_all_queues and access.queues is not None)
        return access.may("read") and not hidden

    def _home(self, access: Access) -> str:
        """The first page that the viewer may see."""
        return next(
            (page.path for page in self._pages if page.in_menu and self._may_see(page, access)), self._pages[-1].path
        )

    # ---- actions

    async def _act(self, request: Request) -> Response:
        access = await access_of(self._who, request)
        action = self._actions.get(request.path_params["action"])
        if not access.may("read") or (action is not None and not access.may(action.needs)):
            return self._forbidden(request, access, "You may not do this.")
        if action is None:
            return await self._missing(request)
        query = Query()
        try:
            query = await read_form(request)
            if await self._is_to_confirm(action, query, access):
                return await self._confirm(request, access, action, query)
            done, rest = await self._do(request, action, query, access)
        except ClientDisconnect:
            return Response(status_code=400)  # the client has closed the connection
        except BadInput as error:
            return self._notice(request, access, None, query, 400, bad=error)
        except Missing as error:
            return self._notice(request, access, None, query, 404, missing=str(error))
        except Refusal as refusal:
            # A page that is given up is an answer, an action is not.
            status = 409 if refusal.what == "slow" else refusal.status
            return self._notice(request, access, None, query, status, refusal=refusal)
        if rest is not None:
            return self._html(request, access, "more.html", 200, action=action, fields=rest.pairs(), done=done)
        came = local_path(query.one("next")) or self._home(access)
        apart = {end: number or None for end, number in done.apart.items()}
        back = Query.parse(came.partition("?")[2]).but(
            did=action.name, n=done.count, left=done.left or None, of=done.of or None, **apart
        )
        path = done.to or came.partition("?")[0]
        return RedirectResponse(f"{request.scope.get('root_path', '')}{path}?{back}", 303)

    async def _is_to_confirm(self, action: PageAction, query: Query, access: Access) -> bool:
        if action.count is None:
            return False
        if query.one("confirmed") == "yes":
            return action.typed is not None and query.one("typed") != query.one(action.typed)
        if action.careful or not query.one("id"):
            return True
        asks = action.asks
        if asks is None:
            return False
        # On the primary, as what is done then: a standby may be away or behind.
        return await self._database.act(lambda connection: asks(PageContext(connection, query, access, self._options)))

    async def _confirm(self, request: Request, access: Access, action: PageAction, query: Query) -> Response:
        """Ask, with the number that the action's own WHERE finds now."""
        count = action.count
        assert count is not None
        number = await self._database.read(
            lambda connection: count(PageContext(connection, query, access, self._options))
        )
        target = query.only(*action.target)
        return self._html(
            request, access, "confirm.html", 200, action=action, fields=query.but(confirmed="yes", typed=()).pairs(), number=number, target=target,
            next=local_path(query.one("next")) or self._home(access),
        )  # fmt: skip

    async def _do(
        self, request: Request, action: PageAction, query: Query, access: Access
    ) -> tuple[Done, Query | None]:
        """Do it, each part in a transaction of its own with its row of the audit; what is left of it after some time, as a form."""
        until = monotonic() + _PATIENCE
        who = access.who or (f"someone at {request.client.host}" if request.client else "someone")
        # Who may read the audit need not be one who may see arguments.
        target = query.only(*action.target).as_dict()
        if "args" in target:
            target["args"] = ["…"]
        count, left, *others = (query.number(name, 0, _NUMBERS) for name in ("count", "left", *action.apart))
        apart = dict(zip(action.apart, others, strict=True))
        while True:
            asked = query

            def do(connection: Any, asked: Query = asked) -> Done:
                done = action.do(PageContext(connection, asked, access, self._options, {}))
                if done.count:
                    connection.execute(
                        record_action(
                            action.name, who=who, target=done.target or target, count=done.count, job=self._options.job
                        )
                    )
                return done

            try:
                done = await self._database.act(do)
            except Refusal as refusal:
                if not count:
                    raise
                before = f"Before that it was done: {_units(action, count)}."
                raise Refusal(refusal.what, f"{refusal.detail} {before}".strip()) from refusal
            count, left = count + done.count, left + done.left
            apart = {end: number + done.apart.get(end, 0) for end, number in apart.items()}
            total = Done(count, left, done.after, done.to, of=done.of, apart=apart)
            if done.after is None:
                return total, None
            query = query.but(after=done.after, count=count, left=left, confirmed="yes", **apart)
            if monotonic() > until:
                return total, query

    # ---- answers

    async def _missing(self, request: Request) -> Response:
        access = await access_of(self._who, request)
        if not access.may("read"):
            return self._forbidden(request, access)
        return self._notice(request, access, None, Query(), 404, missing="There is no such page.")

    def _forbidden(self, request: Request, access: Access, said: str = "You may not see this page.") -> Response:
        if self._who is None:
            said = "The dashboard is closed. Give it access=..., a function that says what a request may do."
        return self._html(request, access, "forbidden.html", 403, said=said)

    def _notice(
        self, request: Request, access: Access, page: Page | None, query: Query, status: int, **values: Any
    ) -> Response:
        fragment = request.headers.get("hx-request") == "true"
        bad: BadInput | None = values.get("bad")
        refusal: Refusal | None = values.get("refusal")
        if refusal is not None and refusal.what == "away" and (access.is_partial or access.queues is not None):
            values["refusal"] = Refusal("away")  # where the database is concerns no tenant
        mend = [] if bad is None else _once_more(bad, query)
        said: dict[str, Any] = {"bad": None, "missing": None, "refusal": None, "mend": mend, **values}
        return self._html(request, access, "notice.html", status, page=page, query=query, fragment=fragment, **said)

    def _html(
        self, request: Request, access: Access, template: str, status: int, *, page: Page | None = None, query: Query | None = None,
        fragment: bool = False, **values: Any,
    ) -> Response:  # fmt: skip
        root = request.scope.get("root_path", "")
        path = request.url.path.removeprefix(root)
        asked = (Query() if query is None else query).but(**dict.fromkeys(self._of_actions, ()))
        said: dict[str, Any] = {
            "page": page,
            "all_actions": self._actions,
            "path": path,
            "method": request.method.lower(),
            "query": asked,
            "here": f"{path}?{asked}" if asked else path,
            "access": access,
            "options": self._options,
            "home": self._home(access),
            "has_replica": self._database.has_replica,
            "menu": [one for one in self._pages if one.in_menu and self._may_see(one, access)],
            # A link from elsewhere says nothing of what was done.
            "said": self._said(query) if request.headers.get("sec-fetch-site", "same-origin") == "same-origin" else [],
            **values,
        }
        # The page's script takes nothing else for its own: a login may answer in our place.
        headers = {"sa-jobqueue-part": "yes"} if fragment else None
        return HTMLResponse(self._renderer.page(template, said, root=root, fragment=fragment), status, headers)

    def _said(self, query: Query | None) -> list[str]:
        """What the last action came to, as the address says it: a name that is known, and numbers."""
        action = None if query is None else self._actions.get(query.one("did"))
        if query is None or action is None:
            return []
        try:
            count, left, *others = (query.number(name, 0, _NUMBERS) for name in ("n", "left", *action.apart))
        except BadInput:
            return []
        became = zip((action.done, *action.apart.values()), (count - sum(others), *others), strict=True)
        of = query.one("of")[:_NAME]
        lines = [words.format(n=_units(action, number), of=of) for words, number in became if number > 0]
        lines = lines or ["Nothing was changed."]
        if left:
            kept = "Left as they are, because another transaction had locked or changed them"
            lines.append(f"{kept}: {_units(action, left)}.")
        return lines


def _once_more(bad: BadInput, query: Query) -> list[tuple[str, str, bool]]:
    """The fields of what was sent, to be sent again once the one that could not be read is mended: name, value, and whether it is shown."""
    pairs = query.pairs()
    if bad.there:
        return []  # a new form shows what there is
    if " " not in bad.name and bad.name not in query:
        if bad.value:
            return []  # it is no field of this form
        pairs.insert(0, (bad.name, ""))
    fields = [(name, value, name in _TYPED or name == bad.name) for name, value in pairs]
    return fields if any(is_shown for *_, is_shown in fields) else []


def _units(action: PageAction, number: int) -> str:
    return count_of_jobs(number) if action.unit == "job" else f"{number:,} {action.unit}{'' if number == 1 else 's'}"


class _Static(StaticFiles):
    """Our own files: their address changes with the release."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["cache-control"] = "public, max-age=604800"
        return answer


#: All that a form can ask for, by name, in the order in which the audit lists them.
ACTIONS = {
    **JOB_ACTIONS,
    **SCHEDULE_ACTIONS,
    **WORKFLOW_ACTIONS,
    **QUEUE_ACTIONS,
    **LIMIT_ACTIONS,
    **WORKER_ACTIONS,
    **CHANGE_ACTIONS,
    **ERROR_ACTIONS,
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
        ACTIONS,
    )
    return Guard(site.application(), csp=csp, trusted_origins=trusted_origins)
