"""The dashboard: pages for the person on call, which you mount in your own application.

    async def who(request: Request) -> Access:
        user = await current_user(request)
        return Access.OPERATE.named(user.email) if user.is_staff else Access.NONE

    app.mount("/jobs", dashboard(engine, access=who))  # FastAPI, Starlette

It needs `sa_jobqueue[dashboard]`: Starlette and Jinja2. Nothing is fetched from outside, and nothing is built.
"""

from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from ..util import lazily

try:
    import jinja2  # noqa: F401  # pyright: ignore[reportUnusedImport]
    import starlette  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    raise ConfigurationError(
        "the dashboard needs Starlette and Jinja2: pip install 'sa_jobqueue[dashboard]'"
    ) from error

from .access import Access, Action, Who
from .app import dashboard
from .request import FormatArgs, LinkSubject, Part

if TYPE_CHECKING:
    from .answers import callbacks
else:
    __getattr__, __dir__ = lazily(__name__, {"answers": "callbacks"})

__all__ = ["Access", "Action", "FormatArgs", "LinkSubject", "Part", "Who", "callbacks", "dashboard"]
