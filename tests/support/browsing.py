"""A viewer of the dashboard without a browser: its requests as a browser sends them, and what the answers say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

from httpx2 import Response
from starlette.testclient import TestClient

from sa_jobqueue.dashboard import Access, dashboard

__all__ = ["Seen", "Viewer"]


class Seen(HTMLParser):
    """What a page holds: its text, its elements with their attributes, and what each form would send."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html, self.words = html, list[str]()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        """All text, with single spaces."""
        return re.sub(r"\s+", " ", " ".join(self.words)).strip()

    def all(self, tag: str, **having: str) -> list[dict[str, str | None]]:
        """The attributes of all elements of this name that have these."""
        return [
            found for name, found in self.elements if name == tag and all(found.get(key) == value for key, value in having.items())
        ]  # fmt: skip

    @property
    def links(self) -> list[str]:
        """Where the page's links lead."""
        return [found["href"] or "" for found in self.all("a") if "href" in found]


class Viewer:
    """One who may do what `access` says."""

    def __init__(self, engine: Any, access: Access | None = Access.ADMIN, **options: Any) -> None:
        self.access = access
        who = None if access is None else (lambda request: self.access)
        self.app = dashboard(engine, access=who, **options)
        self.client = TestClient(self.app, base_url="http://ops.test", follow_redirects=False)

    def get(self, path: str, *, fragment: bool = False, **query: Any) -> Response:
        headers = {"hx-request": "true"} if fragment else {}
        return self.client.get(path, params=query or None, headers=headers)

    def see(self, path: str, *, expected: int = 200, **query: Any) -> Seen:
        """The page, which must have this status."""
        answer = self.get(path, **query)
        assert answer.status_code == expected, answer.text
        return Seen(answer.text)

    def send(self, action: str, fields: Mapping[str, Any] | Sequence[tuple[str, Any]] = (), **headers: str) -> Response:
        """Send a form of the page."""
        return self.client.post(
            f"/act/{action}", data=dict(fields), headers={"sec-fetch-site": "same-origin", **headers}
        )

    def do(self, action: str, **fields: Any) -> Seen:
        """Send a form, confirm it where that is asked for, and follow to the page that comes then."""
        answer = self.send(action, fields)
        if answer.status_code == 200 and 'name="confirmed"' in answer.text:
            asked = re.search("Type “(.*?)”", answer.text)
            typed = {} if asked is None else {"typed": asked[1]}
            answer = self.send(action, {**fields, "confirmed": "yes", **typed})
        assert answer.status_code == 303, answer.text
        return self.see(answer.headers["location"])
