"""The dashboard in a real browser: served on a port of 127.0.0.1, and looked at by Debian's Chromium.

with served(dashboard(engine, access=who)) as url, chromium() as browser:
    page = browser.new_page()
    page.goto(f"{url}/jobs")
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.support.waiting import wait_until

__all__ = ["PROGRAM", "chromium", "served"]

PROGRAM = Path("/usr/bin/chromium")


@contextmanager
def served(app: Any) -> Iterator[str]:
    """An ASGI application meanwhile; its address."""
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        assert server.started
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright here")
    if not PROGRAM.exists():
        pytest.skip(f"there is no {PROGRAM} here: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(PROGRAM), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
