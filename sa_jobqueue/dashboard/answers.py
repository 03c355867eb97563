"""The application behind the addresses of `ctx.callback_url`. The first POST to an address sends the signal; a GET shows a form.

The address itself is the permission: the application asks for no login or cookie, so a form on another site gains nothing. The transaction
that sends the signal also marks the address as used, in the table `inbox`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs

import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..arguments.questions import Question, question_of
from ..errors import ConfigurationError, PayloadError
from ..models import is_own, schema_of
from ..rules.callbacks import Callbacks, Ticket
from ..sql.steps import note_once, read_ticket, send_signal
from ..tasks.registry import Registry, default_registry
from ..util.log import get_logger
from .database import Anywhere, Database
from .refusals import Refusal
from .render import environment

logger = get_logger(__name__)

_STYLE = (
    "body{margin:15vh auto 0;max-width:34rem;padding:0 1rem;font:1.1rem/1.5 system-ui,sans-serif;color-scheme:light dark}"
    "h1{font-size:1.4rem}button{font:inherit;padding:.5rem 1.5rem;min-width:12rem}textarea{font:1rem monospace;width:100%}"
)
#: The page must not be framed, because a click on it is an answer. Its address is a secret, so it is sent to no other site.
_HEADERS: Mapping[str, str] = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'", "cache-control": "no-store",
    "referrer-policy": "no-referrer", "x-content-type-options": "nosniff", "x-robots-tag": "noindex",
}  # fmt: skip
_TEXTS: Mapping[int, str] = {
    200: "Thank you. Your answer was taken.",
    403: "This address is not valid: it was changed, or the key that signed it was withdrawn.",
    409: "This address was used before. An answer counts once.",
    410: "This address has expired.",
    413: "The answer is too long.",
    415: "The answer must be JSON or a form.",
    503: "The answer cannot be taken just now. Try again.",
}  # fmt: skip
#: The most fields of a form.
_MOST_FIELDS = 1_000


class _Refused(Exception):
    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(status)
        self.status, self.text = status, text or _TEXTS[status]


def callbacks(engine: Anywhere, *, registry: Registry = default_registry, schema: str | None = None) -> ASGIApp:
    """The ASGI application behind the addresses of `ctx.callback_url`. Mount it at `registry.callbacks.url`.

    A POST of JSON or of a form sends the signal, with the body as payload. The answer is 200; 403 if no key has signed the address, 409 if the
    address was used, 410 if it has expired, 413 for a body that is too long, and 400, 415 or 422 for an invalid payload. If a form has a single
    field named `payload`, its text is read as JSON. A GET shows the question, and sends nothing.

    Args:
        engine: An Engine or an AsyncEngine, whose role can `enqueue`.
        registry: The tasks whose handlers make the addresses.
        schema: The schema of the tables, if not `sa_jobqueue` or that of the application's own job table.

    Raises ConfigurationError if the registry has no `callbacks`, or `engine` is no engine.
    """
    if registry.callbacks is None:
        raise ConfigurationError(
            'set registry.callbacks = Callbacks(url="https://shop.example/hooks", keys=[...]) first'
        )
    site = _Site(engine, registry, registry.callbacks, schema)
    return Starlette(routes=[Route("/{rest:path}", site.answer, methods=["GET", "POST"])])


class _Site:
    def __init__(self, engine: Anywhere, registry: Registry, hooks: Callbacks, schema: str | None) -> None:
        self._job, self._hooks = registry.job, hooks
        self._database = Database(engine, schema=schema, own=schema_of(self._job) if is_own(self._job) else None)

    async def answer(self, request: Request) -> Response:
        """Take an answer, or show the form for it."""
        try:
            ticket = self._hooks.read(request.path_params["rest"].rpartition("/")[2])
            if ticket is None:
                raise _Refused(403)
            if request.method != "POST":
                question = await self._database.read(lambda connection: self._look(connection, ticket))
                return _page(
                    200, question.text if question else f"An answer for {ticket.signal}", question or Question("")
                )
            await self._take(ticket, *await _payload(request, self._hooks.max_bytes))
        except _Refused as refused:
            return _respond(request, refused.status, refused.text)
        except PayloadError as error:
            return _respond(request, 400, str(error))
        except ClientDisconnect:
            return Response(status_code=400)
        except Refusal as refusal:
            logger.warning("an answer was not taken: %s", refusal)
            return _respond(request, 503)
        return _respond(request, 200)

    def _look(self, connection: sa.Connection, ticket: Ticket) -> Question | None:
        found = connection.execute(read_ticket(ticket.signal, _key(ticket), ticket.expires, job=self._job)).one()
        if found.expired or found.used:
            raise _Refused(410 if found.expired else 409)
        return question_of(found.question)

    async def _take(self, ticket: Ticket, payload: Any, is_fields: bool) -> None:
        def take(connection: sa.Connection) -> None:
            question = self._look(connection, ticket)
            answer = question.from_form(payload) if question is not None and is_fields else payload
            if question is not None and (reason := question.misfit(answer)):
                raise _Refused(422, f"This is no answer to the question: {reason}.")
            signal = send_signal(ticket.signal, answer, job=self._job)
            if connection.execute(note_once(_key(ticket), job=self._job)).first() is None:
                raise _Refused(409)
            connection.execute(signal)

        await self._database.act(take)


def _key(ticket: Ticket) -> str:
    return f"callback:{ticket.nonce}"


async def _payload(request: Request, most: int) -> tuple[Any, bool]:
    """The payload in the body of a request, and whether it consists of the fields of a form. Raises _Refused."""
    body = bytearray()  # grows in place
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise _Refused(413)
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    is_form = kind == "application/x-www-form-urlencoded"
    if body and not is_form and not kind.endswith(("/json", "+json")):
        raise _Refused(415)
    try:
        text = body.decode()
        if is_form:
            fields = parse_qs(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
            if fields.keys() != {"payload"}:
                return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}, True
            text = fields["payload"][-1]
        return json.loads(text) if text.strip() else None, False
    except (ValueError, RecursionError) as error:
        raise _Refused(400, f"The answer cannot be read: {error}") from error


def _respond(request: Request, status: int, text: str = "") -> Response:
    """A response with this text: a page for a browser, else plain text."""
    text = text or _TEXTS[status]
    if "text/html" in request.headers.get("accept", ""):
        return _page(status, text)
    return PlainTextResponse(text, status, _HEADERS)


def _page(status: int, text: str, question: Question | None = None) -> Response:
    return HTMLResponse(
        environment().get_template("callback.html").render(text=text, question=question, style=_STYLE), status, _HEADERS
    )
