"""Handling of jobs that break a claim."""
