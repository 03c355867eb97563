"""Asking the endpoint of a command."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

from tests.support.commands import Command

__all__ = ["address_of", "get", "value"]


def address_of(command: Command) -> str:
    """Host and port of its endpoint, as its log says."""
    found = re.search(r"metrics .*?at http://(\S+)/metrics", command.output)
    assert found is not None, command.output
    return found[1]


def get(command: Command, path: str) -> tuple[int, str]:
    """The status and the text of an answer."""
    try:
        with urllib.request.urlopen(f"http://{address_of(command)}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def value(command: Command, series: str) -> float | None:
    """One series of its metrics; None if it is not there."""
    status, text = get(command, "/metrics")
    assert status == 200, text
    lines = [line for line in text.splitlines() if line.startswith(f"{series} ")]
    return float(lines[0].rpartition(" ")[2]) if lines else None
