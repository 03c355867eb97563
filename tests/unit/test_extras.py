"""What a module that needs an extra says where that is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("sa_jobqueue.metrics", "prometheus_client", "metrics"),
        ("sa_jobqueue.otel", "opentelemetry", "otel"),
        ("sa_jobqueue.sentry", "sentry_sdk", "sentry"),
    ],
)
def test_a_missing_extra_is_named(module: str, missing: str, extra: str) -> None:
    """With the line to type, and not only the module that was not found."""
    program = f"import sys; sys.modules['{missing}'] = None\nimport {module}"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"pip install 'sa_jobqueue[{extra}]'" in done.stderr.splitlines()[-1]
