"""How long to look: `pytest tests/properties --hypothesis-profile=nightly` looks much longer."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "nightly",
    derandomize=False,
    max_examples=100,
    stateful_step_count=100,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def is_nightly() -> bool:
    """Whether there is time."""
    return settings.get_current_profile_name() == "nightly"
