"""Pages of the docs that a measurement writes a part of, between two markers."""

from __future__ import annotations

from pathlib import Path


def put_between(page: Path, begin: str, end: str, section: str) -> None:
    """Put `section` between the markers; nothing else of the page is touched. A page without them is refused."""
    text = page.read_text()
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{page} needs one line {begin!r} and one line {end!r}")
    before, rest = text.split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n\n{section.strip()}\n\n{end}{after}")
