"""Folders for the files of servers: a short path, because a socket is in them, and open to the user who runs them for root.

They are in memory where there is enough of it. A test has a database of its own: 300 files, made and soon deleted. On ext4
a process that makes a file looks at each inode that was deleted in the last minute, to take none of them; that was 40 % of
the processor time of a run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil

_MEMORY = Path("/dev/shm")
_ENOUGH = 4 * 2**30
"""Bytes; a run takes less than half of it."""


def make_server_folder(prefix: str) -> Path:
    """A new folder, which the caller removes."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=_MEMORY if _has_memory() else "/tmp"))
    folder.chmod(0o755)
    return folder


@contextmanager
def server_folder() -> Generator[Path]:
    """A new folder, removed at the end."""
    folder = make_server_folder("sajq-embedded-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _has_memory() -> bool:
    if not os.access(_MEMORY, os.W_OK):
        return False
    if os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC:  # the embedded server's programs are there, too
        return False
    return min(shutil.disk_usage(_MEMORY).free, psutil.virtual_memory().available) >= _ENOUGH
