"""Claiming: one thread finishes and claims; what it needs for that, and for jobs that cannot be claimed."""
