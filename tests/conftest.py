"""What every test may ask for: a database of its own, a fast shared one, and engines and sessions on either.

`database_url` is a fresh clone of the migrated template, for this test alone. `shared_database_url` is this worker's
database, emptied before the test: faster, and right wherever a test does not change the schema. `engine`, `async_engine`,
`session` and `async_session` are on `database_url` where the test (or a fixture it uses) names that, else on the shared one.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from tests.support import keeper, pooler
from tests.support.compiling import share_compiled
from tests.support.databases import Databases, connect, empty
from tests.support.engines import new_async_engine, new_engine

CHOICE = pytest.StashKey[keeper.Choice]()
KEEPER = pytest.StashKey[subprocess.Popen[str]]()
FOLDER = pytest.StashKey[Path]()
RUN = pytest.StashKey[str]()
MEASURE = pytest.StashKey[str]()

# The tests start hundreds of processes, each of which would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell lets what it starts in the background ignore Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in each run, so that what fails is what was changed; `nox -s properties` looks for new ones. An example has no
# time limit, because a busy machine may need long for any.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile(
    "nightly",
    derandomize=False,
    max_examples=100,
    stateful_step_count=100,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("same")

share_compiled()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sa_jobqueue")
    group.addoption(
        "--pg",
        type=int,
        metavar="VERSION",
        help="run on this PostgreSQL: 18 or 16 (embedded), or any that Debian's packages have installed (15)",
    )
    group.addoption(
        "--pgbouncer",
        choices=pooler.MODES,
        help="run through PgBouncer in transaction mode; workers listen on a direct URL, or only poll",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Start the keeper in the controller; a worker is told where it is."""
    measure_no_process(config)
    if (given := getattr(config, "workerinput", None)) is not None:
        config.stash[FOLDER], config.stash[RUN] = Path(given["keeper_folder"]), given["keeper_run"]
        return
    try:
        choice = keeper.choose(config.getoption("--pg"), os.environ.get("SA_JOBQUEUE_TEST_URL"))
    except keeper.Unavailable as error:
        raise pytest.UsageError(str(error)) from None
    pooled = config.getoption("--pgbouncer") is not None
    if pooled and pooler.PROGRAM is None:
        raise pytest.UsageError("--pgbouncer: there is no program pgbouncer here (Debian's package pgbouncer)")
    run = f"sajq_{secrets.token_hex(4)}"
    try:
        process, folder = keeper.launch(choice, run, pooled=pooled)
    except keeper.Unavailable as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[CHOICE], config.stash[KEEPER] = choice, process
    config.stash[FOLDER], config.stash[RUN] = folder, run


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the keeper, and with it the server."""
    process = config.stash.get(KEEPER, None)
    if process is not None:
        process.communicate(timeout=120)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A text with a lone surrogate, of a failure or captured, cannot be sent to the controller, and would end the whole run."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.failed:
        text = f"{report.longrepr}"
        if not text.isascii() and text.encode(errors="backslashreplace") != text.encode(errors="surrogatepass"):
            report.longrepr = text.encode(errors="backslashreplace").decode()
    report.sections = [(name, content.encode(errors="backslashreplace").decode()) for name, content in report.sections]
    return report  # type: ignore[return-value]


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    measure_no_process(session.config)  # in a worker pytest-cov begins only now


def measure_no_process(config: pytest.Config) -> None:
    """No process that a test starts counts for the coverage, unless the test asks for it with `measured`.

    A process that is measured takes a half longer to start, there are hundreds, and one that is killed tells nothing.
    """
    if (setting := os.environ.pop("COVERAGE_PROCESS_CONFIG", None)) is not None:
        config.stash[MEASURE] = setting


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:  # type: ignore[no-untyped-def]  # pytest-xdist's
    node.workerinput["keeper_folder"] = str(node.config.stash[FOLDER])
    node.workerinput["keeper_run"] = node.config.stash[RUN]


def pytest_collection_finish() -> None:
    """What is there by now stays to the end: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


def pytest_report_header(config: pytest.Config) -> str:
    choice = config.stash.get(CHOICE, None)
    mode = config.getoption("--pgbouncer")
    behind = f", behind PgBouncer ({mode})" if mode else ""
    return f"database server: {choice}{behind}" if choice else ""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if said := keeper.notice(config.stash[FOLDER]):
        terminalreporter.line(f"database server: {said}", yellow=True)


@pytest.fixture
def measured(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that this test starts count for the coverage, where one is asked for."""
    if (setting := pytestconfig.stash.get(MEASURE, None)) is not None:
        monkeypatch.setenv("COVERAGE_PROCESS_CONFIG", setting)


@pytest.fixture(autouse=True)
def no_middleware_stays() -> Iterator[None]:
    """It is the process's own, and commands in the test's process install some, as `work --log-format json` does."""
    from sa_jobqueue.tasks.middleware import installed, remove_middleware  # not before coverage looks

    before = installed.all
    yield
    for one in installed.all:
        if one not in before:
            remove_middleware(one)


@pytest.fixture(scope="session")
def databases(pytestconfig: pytest.Config) -> Databases:
    """The run's databases, on its server; the first test that asks starts it."""
    try:
        url = keeper.ask(pytestconfig.stash[FOLDER])
    except keeper.Unavailable as error:
        pytest.exit(str(error), returncode=4)
    if (mode := pytestconfig.getoption("--pgbouncer")) is not None:
        pooler.use(pooler.Pooler(keeper.pooler_port(pytestconfig.stash[FOLDER]), url, mode))
    return Databases(url, pytestconfig.stash[RUN])


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    """The URL of a migrated database for this test alone."""
    name = databases.new_name()
    yield pooler.through(databases.create(name))
    databases.drop(name)


@pytest.fixture
def empty_database_url(databases: Databases) -> Iterator[str]:
    """The URL of a database for this test alone, without our schema."""
    name = databases.new_name()
    yield databases.create(name, template="template1")
    databases.drop(name)


@pytest.fixture(scope="session")
def _shared_database(databases: Databases) -> Iterator[tuple[str, psycopg.Connection]]:
    name = databases.new_name()
    url = databases.create(name)
    with connect(url) as connection:
        yield url, connection
    databases.drop(name)


@pytest.fixture
def shared_database_url(_shared_database: tuple[str, psycopg.Connection]) -> str:
    """The URL of this worker's migrated database, emptied for this test."""
    url, connection = _shared_database
    empty(connection)
    return pooler.through(url)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The URL of the database that the test asked for: `database_url` where it is named, else the shared one."""
    name = "database_url" if "database_url" in request.fixturenames else "shared_database_url"
    value: str = request.getfixturevalue(name)
    return value


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """An engine (psycopg) on the test's database."""
    engine = new_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
async def async_engine(url: str) -> AsyncIterator[AsyncEngine]:
    """An async engine (psycopg) on the test's database."""
    engine = new_async_engine(url)
    yield engine
    await engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """A Session on the test's database; what it has not committed is rolled back."""
    with Session(engine) as session:
        yield session


@pytest.fixture
async def async_session(async_engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
    """An AsyncSession on the test's database; what it has not committed is rolled back."""
    async with AsyncSession(async_engine) as session:
        yield session
