"""Enqueueing jobs: through a Session, in bulk, from a SELECT."""
