"""What a module that needs an extra says where that is not installed."""

from __future__ import annotations

import subprocess
import sys

#: Of each extra the module that needs it, and the distribution's module that is missing.
EXTRAS = {
    "metrics": ("sa_jobqueue.metrics", "prometheus_client"),
    "otel": ("sa_jobqueue.otel", "opentelemetry"),
    "pydantic-ai": ("sa_jobqueue.pydantic_ai", "pydantic_ai"),
    "sentry": ("sa_jobqueue.sentry", "sentry_sdk"),
}

PROGRAM = f"""
import importlib, sys
for extra, (module, missing) in {EXTRAS}.items():
    sys.modules[missing] = None
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(extra, error)
"""


def test_a_missing_extra_is_named() -> None:
    """With the line to type, and not only the module that was not found."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(EXTRAS)
    assert not [line for line in lines if f"pip install 'sa_jobqueue[{line.split()[0]}]'" not in line]


def test_the_testing_kit_needs_no_pytest() -> None:
    """Its functions serve unittest, too. Only the plugin, which pytest loads, imports pytest."""
    program = "import sys; sys.modules['pytest'] = None; import sa_jobqueue.testing as kit; kit.JobQueue"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
