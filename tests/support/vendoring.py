"""Files of others that lie in the tree: which they are, and fetching them by npm.

python -m tests.support.vendoring
"""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["PACKAGES", "ROOT", "prepared", "vendor"]

ROOT = Path(__file__).parents[2]
PACKAGES: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/dashboard/vendored.toml").read_text())["package"]


def prepared(file: Mapping[str, Any], content: bytes) -> bytes:
    """A file of a package as it lies in the tree."""
    if (beginning := file.get("without")) is None:
        return content
    lines = content.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(beginning.encode()))


def vendor() -> None:
    """Fetch all of them, and write them into the tree. What is not as the list says is refused, before anything is written."""
    found: dict[Path, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        for package in PACKAGES:
            said = f"{package['name']}@{package['version']}"
            packed = subprocess.run(
                ["npm", "pack", "--silent", said], cwd=folder, check=True, capture_output=True, text=True
            ).stdout.split()[-1]
            with tarfile.open(Path(folder) / packed) as archive:
                for file in package["file"]:
                    member = archive.extractfile(f"package/{file['of']}")
                    assert member is not None, file
                    content = prepared(file, member.read())
                    if hashlib.sha256(content).hexdigest() != file["sha256"]:
                        raise SystemExit(
                            f"{said}: {file['of']} is not the file that tests/dashboard/vendored.toml says"
                        )
                    found[ROOT / package["folder"] / file["name"]] = content
    for path, content in found.items():
        path.write_bytes(content)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    vendor()
