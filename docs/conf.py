"""Sphinx's settings: `python -m nox -s docs`. Nothing is fetched, and a warning is an error."""

from __future__ import annotations

import sys
from pathlib import Path

from pygments.lexers.sql import PostgresLexer
from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import sa_jobqueue  # noqa: E402
from sa_jobqueue import __version__  # noqa: E402

# While autodoc reads a module, TYPE_CHECKING is set: what is mapped must be there before.
for name in sa_jobqueue.__all__:
    getattr(sa_jobqueue, name)

project = "sa_jobqueue"
author = "The sa_jobqueue maintainers"
project_copyright = "The sa_jobqueue maintainers, MIT license"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
    "cli_reference",
    "lifecycle_diagram",
    "narrow_tables",
    "plain_docstrings",
    "sequence_diagram",
]
exclude_patterns = ["_build", "_ext"]
source_suffix = {".md": "markdown"}

html_theme = "furo"
html_title = "sa_jobqueue"
html_static_path = ["_static"]
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_css_files = ["custom.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

# Only the commands of a `console` block are copied.
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_use_type_comments = False
default_role = "code"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

nitpicky = True
# What other packages define has its own documentation, which is not fetched; and names that are private on purpose.
nitpick_ignore_regex = [
    (
        "py:.*",
        r"(sa|sqlalchemy|starlette|datetime|collections|typing|logging|alembic|enum|uuid|contextlib|asyncio|pathlib|types)\..*",
    ),
    (
        "py:.*",
        r"(Session|AsyncSession|Engine|AsyncEngine|Connection|Executable|Insert|Select|SelectBase|URL|ReturningUpdate|ReturningDelete)",
    ),
    (
        "py:.*",
        r"(Any|Callable|Mapping|Sequence|Iterable|Iterator|Generator|Collection|Concatenate|Never|Self)",
    ),
    ("py:.*", r"(ColumnElement|ColumnExpressionArgument|Criterion|(Text|Number|Time|Duration)Expression)"),
    (
        "py:.*",
        r"(datetime|timedelta|LoggerAdapter|Logger|sessionmaker|async_sessionmaker|TypeDecorator|DeclarativeBase)",
    ),
    (
        "py:.*",
        r"(P|R|F|S|T|Duration|Every|Lazy|AliasedClass|Missed|Overlap|Locked|Progress|LogPart|ArchivedTask|DelayRule|Slot|Path|Outcome|_.*|.*\._.*|.*\.(P|R|F|S))",
    ),
    ("py:.*", r"sa_jobqueue\.(?!(Job|Task|Worker|Registry)\b).*"),
    ("py:exc", r"(ConfigurationError|JobQueueError|SchemaError|EmbeddedUnavailable)"),
    (
        "py:.*",
        r"(SessionMaker|AsyncSessionMaker|BaseModel|MigrationOperations|MigrationContext|Change|Claim|ClaimedJob|Rules|Options|AnyTask)",
    ),
]

# Pages for contributors, which the search of a user would find before the how-to with the answer.
unsearched = ("explanation/decisions/", "explanation/measurements", "changelog", "contributing")


def _leave_out_of_search(app: Sphinx, _doctree: object) -> None:
    if app.env.docname.startswith(unsearched):
        app.env.metadata[app.env.docname]["nosearch"] = "true"


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.add_lexer("sql", PostgresLexer)
    app.connect("doctree-read", _leave_out_of_search)
