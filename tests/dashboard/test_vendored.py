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


@pytest.mark.parametrize(("package", "file"), FILES, ids=[file["name"] for _, file in FILES])
def test_a_file_is_the_one_that_the_list_says(package: dict[str, Any], file: dict[str, Any]) -> None:
    content = (folder_of(package) / file["name"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == file["sha256"]
    assert prepared(file, content) == content


@pytest.mark.parametrize("folder", sorted({str(folder_of(package)) for package in PACKAGES}))
def test_there_is_no_file_that_the_list_does_not_say(folder: str) -> None:
    said = {
        file["name"] for package in PACKAGES if str(folder_of(package)) == folder for file in package["file"]
    }  # fmt: skip
    assert {path.name for path in Path(folder).iterdir()} == said


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


@pytest.mark.parametrize(("package", "file"), FILES, ids=[file["name"] for _, file in FILES])
def test_none_asks_a_browser_for_a_file_that_is_not_there(package: dict[str, Any], file: dict[str, Any]) -> None:
    assert "sourceMappingURL" not in (folder_of(package) / file["name"]).read_text()
