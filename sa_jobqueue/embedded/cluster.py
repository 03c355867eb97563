"""The database cluster of a server: made once, started and stopped. The caller holds the folder's lock."""

from __future__ import annotations

import secrets
import shlex
import shutil

from ..errors import EmbeddedUnavailable
from .account import make_folder, run
from .connection import settles_running
from .processes import drop_misleading_pid_files
from .spec import DEFAULT_SETTINGS, ServerSpec
from .waiting import PATIENCE, polls

__all__ = ["prepare", "start", "stop"]


def prepare(spec: ServerSpec) -> None:
    """Make what a first start needs: folders and a database cluster."""
    make_folder(spec, spec.home)
    make_folder(spec, spec.socket_directory)
    if not spec.data.exists():
        _make_cluster(spec)


def _make_cluster(spec: ServerSpec) -> None:
    """Run `initdb` in a draft folder, so that a kill in its midst leaves nothing half made.

    Each draft has a name of its own, because the `initdb` of a killed command goes on for a moment.
    """
    for abandoned in spec.home.glob("draft-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    draft = spec.home / f"draft-{secrets.token_hex(4)}"
    locale = ["--locale-provider=builtin", "--locale=C.UTF-8"] if spec.version >= 17 else ["--no-locale"]
    options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", *locale]
    if spec.settings.get("fsync") == "off":
        options.append("--no-sync")
    run(spec, "initdb", "-D", str(draft), *options)
    draft.rename(spec.data)


def start(spec: ServerSpec) -> None:
    """Start the server in a session of its own: no signal to the starting command reaches it."""
    drop_misleading_pid_files(spec)
    settings = {
        **DEFAULT_SETTINGS,
        **spec.settings,
        "listen_addresses": "",
        "unix_socket_directories": '"{}"'.format(str(spec.socket_directory).replace('"', '""')),
        "unix_socket_permissions": "0700",
    }
    options = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in settings.items())
    for _ in polls(10.0):
        logged = spec.log.stat().st_size if spec.log.exists() else 0
        try:
            return _pg_ctl(spec, "start", "-l", str(spec.log), "-o", options)
        except EmbeddedUnavailable as error:
            if settles_running(spec):  # a command killed while it started the server had already done so
                return None
            with open(spec.log, "rb") as log:
                log.seek(logged)
                news = log.read().decode(errors="replace").strip()
            # The children of a killed server hold its memory for a moment longer.
            if "shared memory block" not in news:
                raise EmbeddedUnavailable(f"{error}\n{news[-2000:]}\n(from {spec.log})") from None
    raise EmbeddedUnavailable(f"processes of a killed server still use {spec.data}; its log is {spec.log}")


def stop(spec: ServerSpec) -> None:
    """Stop the server, which ends all its connections."""
    _pg_ctl(spec, "stop", "-m", "fast")


def _pg_ctl(spec: ServerSpec, action: str, *options: str) -> None:
    run(spec, "pg_ctl", action, "-D", str(spec.data), "-w", "-t", str(int(PATIENCE)), *options)
