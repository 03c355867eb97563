"""The files of others in the tree: each is the one that the list says, with its licence, and there are no others."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

# In a wheel's test the package lies elsewhere.
import sa_jobqueue
from tests.support.vendoring import PACKAGES, ROOT, prepared

PACKAGE = Path(sa_jobqueue.__path__[0])


def folder_of(package: dict[str, Any]) -> Path:
    inside = package["folder"].removeprefix("sa_jobqueue/")
    return PACKAGE / inside if inside != package["folder"] else ROOT / inside


FILES = [(package, file) for package in PACKAGES for file in package["file"]]


def test_each_file_is_the_one_that_the_list_says() -> None:
    wrong = []
    for package, file in FILES:
        content = (folder_of(package) / file["name"]).read_bytes()
        if hashlib.sha256(content).hexdigest() != file["sha256"] or prepared(file, content) != content:
            wrong.append(file["name"])
    assert not wrong


def test_there_is_no_file_that_the_list_does_not_say() -> None:
    said = {folder_of(package) / file["name"] for package, file in FILES}
    assert {path for package in PACKAGES for path in folder_of(package).iterdir()} == said


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package["name"])
def test_each_has_its_licence_beside_it(package: dict[str, Any]) -> None:
    """The text of the licence that the list names."""
    (name,) = (file["name"] for file in package["file"] if file["of"] == "LICENSE")
    words = {
        "MIT": "Permission is hereby granted, free of charge",
        "0BSD": "with or without fee is hereby granted",
        "MPL-2.0": "Mozilla Public License, version 2.0",
    }
    assert words[package["licence"]] in (folder_of(package) / name).read_text()


def test_none_asks_a_browser_for_a_file_that_is_not_there() -> None:
    files = {file["name"]: folder_of(package) / file["name"] for package, file in FILES}
    assert [name for name, path in files.items() if "sourceMappingURL" in path.read_text()] == []
