"""Everything that a reviewer would check, each in an environment of its own.

python -m nox -s demo                    the main job, on the running Python's own standard library
python -m nox -s tests                   the tests; arguments go to pytest: python -m nox -s tests -- --pg=16 -k claim
python -m nox -l                         the others
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["tests", "lint", "types"]

PYPROJECT = nox.project.load_toml("pyproject.toml")
BESIDE_THE_PACKAGE = ["alembic", "docs", "tests", "CHANGELOG.md", "README.md", "noxfile.py", "pyproject.toml"]


def install(session: nox.Session, *groups: str, project: tuple[str, ...] = ("-e", ".[embedded]")) -> None:
    """Install the project and groups of its development dependencies in one go."""
    session.install("-q", *project, *nox.project.dependency_groups(PYPROJECT, *groups))


def in_parallel(session: nox.Session) -> list[str]:
    """Return pytest's arguments for all processors, unless the caller says how many or asks for a debugger.

    A test waits for other processes as long as it computes: with two at a time a processor is nearly always busy.
    """
    said = {"-n", "--numprocesses", "--pdb", "--collect-only"}
    if any(argument.split("=")[0] in said or argument.startswith("-n") for argument in session.posargs):
        return []
    return [f"--numprocesses={min(2 * (os.cpu_count() or 1), 8)}", "--dist=worksteal"]


@nox.session
def demo(session: nox.Session) -> None:
    """Install all that is needed and index a real code base; arguments go to `sa-jobqueue demo`."""
    install(session)
    session.run("sa-jobqueue", "demo", *session.posargs)


#: A test that hangs ends its process, with what its threads were doing, and does not hold up the rest.
PATIENT = ["--timeout=600", "--timeout-method=thread"]


@nox.session
def tests(session: nox.Session) -> None:
    """Run what each change must pass: every promise once."""
    install(session, "test")
    session.run("pytest", *PATIENT, *in_parallel(session), *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """Run the tests and report the coverage of their branches, with which what computes takes twice as long."""
    install(session, "test")
    covered = ["--cov", "--cov-report=term-missing:skip-covered"]
    session.run("pytest", *PATIENT, *in_parallel(session), *covered, *session.posargs)


@nox.session
@nox.parametrize(("python", "pg"), [("3.13", 18), ("3.11", 15)], ids=["18", "15"])
def slow(session: nox.Session, pg: int) -> None:
    """Run everything, nightly or not, on the newest and the oldest PostgreSQL: `slow(18)` with Python 3.13, `slow(15)` with 3.11."""
    install(session, "test")
    thorough = ["-m", "", "--hypothesis-profile=nightly", "--timeout=1800", "--timeout-method=thread"]
    session.run("pytest", *thorough, f"--pg={pg}", *in_parallel(session), *session.posargs)


@nox.session
def properties(session: nox.Session) -> None:
    """Search for long: thousands of random steps against the model, and every pair of operations at once."""
    install(session, "test")
    session.run(
        "pytest", "tests/properties", "-m", "", "--hypothesis-profile=nightly", *in_parallel(session), *session.posargs
    )


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format and that imports only go down."""
    install(session, "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-cache")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types with both checkers, and what users' code would see of them."""
    install(session, "types")
    checked = ["sa_jobqueue", *(["tests/typing"] if Path("tests/typing").exists() else [])]
    session.run("mypy", *checked)
    session.run("pyright", *checked)
    session.run("pytest", "--numprocesses=2", "tests/typing")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning is an error, and nothing is fetched."""
    install(session, "docs")
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html", *session.posargs)


@nox.session
def pictures(session: nox.Session) -> None:
    """Take the pictures of the dashboard for the docs again, by Debian's Chromium; arguments go to `python -m tests.support.pictures`."""
    install(session, "test", project=("-e", ".[embedded,dashboard]"))
    session.run("python", "-m", "tests.support.pictures", *session.posargs)


@nox.session(python=False)
def vendor(session: nox.Session) -> None:
    """Fetch the scripts of others that lie in the tree, by npm: those that tests/dashboard/vendored.toml names."""
    session.run(sys.executable, "-m", "tests.support.vendoring")


#: What may fail in a wheel alone: a file that is not in it, an import of the source tree, an entry point.
OF_THE_WHEEL = [
    "tests/unit/test_imports.py",
    "tests/unit/test_extras.py",
    "tests/unit/test_without_libpq.py",
    "tests/migrations/test_commands.py",
    "tests/integration/test_cli_metrics.py",
    "tests/integration/test_cli_dashboard.py",
    "tests/dashboard/test_vendored.py",
    "tests/acceptance/test_pytest_plugin.py::test_with_anyio_too",
    "tests/acceptance/test_demo.py::test_the_demo_kills_a_worker_and_proves_that_nothing_is_lost",
]


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the wheel and run what depends on it, away from the source tree: files beside the code, imports, commands."""
    away = Path(session.create_tmp()).resolve()
    shutil.rmtree(away)
    away.mkdir()
    session.install("-q", "build")
    session.run("python", "-m", "build", "--wheel", "--outdir", str(away), ".", silent=True)
    (built,) = away.glob("*.whl")
    install(session, "test", project=(f"sa_jobqueue[embedded] @ {built.as_uri()}",))
    session.install("-q", "--force-reinstall", "--no-deps", str(built))  # the version of a working copy does not change
    for name in BESIDE_THE_PACKAGE:
        source = Path(name)
        if source.is_dir():
            shutil.copytree(source, away / name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
        elif source.exists():
            shutil.copy(source, away)
    session.chdir(away)
    session.run("python", "-c", "import sa_jobqueue, sys; sys.exit('site-packages' not in sa_jobqueue.__path__[0])")
    session.run("pytest", *in_parallel(session), *(session.posargs or OF_THE_WHEEL))


@nox.session
def bench(session: nox.Session) -> None:
    """Measure speed; the figures are printed, not judged."""
    install(session, "test", project=("-e", ".[embedded,uvloop]"))
    session.run("python", "-m", "tests.benchmarks", *session.posargs)


@nox.session
def curves(session: nox.Session) -> None:
    """Measure how speed scales and draw it for the docs; arguments go to `python -m tests.benchmarks.curves`."""
    install(session, "test", "bench", project=("-e", ".[embedded,uvloop]"))
    found = str(Path(session.create_tmp()).resolve() / "curves.json")
    session.run("python", "-m", "tests.benchmarks.curves", "--json", found, *session.posargs)
    session.run("python", "-m", "tests.benchmarks.pictures", found)


@nox.session(python="3.11", venv_backend="uv")
def lowest(session: nox.Session) -> None:
    """Run the tests with the lowest versions that pyproject.toml allows of what it names."""
    lowest_direct = ("--resolution=lowest-direct", "-r", "pyproject.toml", "--extra=embedded", "--group=test")
    session.install("-q", *lowest_direct)
    session.install("-q", "--no-deps", "-e", ".")
    session.run("pytest", *in_parallel(session), *session.posargs)


@nox.session
def pgbouncer(session: nox.Session) -> None:
    """Run what talks to a database through PgBouncer in transaction mode, with a listener and without."""
    if shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        session.skip("there is no program pgbouncer here: apt-get install pgbouncer")
    install(session, "test")
    where = session.posargs or ["tests/integration", "tests/conformance", "tests/acceptance"]
    for mode in ("listener", "no-listener"):
        session.run("pytest", *in_parallel(session), f"--pgbouncer={mode}", *where)


@nox.session
def faults(session: nox.Session) -> None:
    """Run the workers through each fault for long, then through all at random: --seed 7 --faults-seconds 600."""
    install(session, "test")
    session.run("python", "-m", "tests.faults", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Work through half an hour of mixed load, and see what grows, waits or is lost: --minutes 30 --json FILE."""
    install(session, "test", "bench", project=("-e", ".[embedded,uvloop]"))
    session.run("python", "-m", "tests.faults.soak", *session.posargs)


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
def pythons(session: nox.Session) -> None:
    """Run the tests on every supported Python that is here."""
    install(session, "test")
    session.run("pytest", *in_parallel(session), *session.posargs)


@nox.session(name="bench-peers")
def bench_peers(session: nox.Session) -> None:
    """Drain side by side with other queues, their newest releases; arguments go to `python -m tests.benchmarks.peers`."""
    install(session, "test", project=("-e", ".[embedded,uvloop]"))
    session.run("python", "-m", "tests.benchmarks.peers", *session.posargs)
