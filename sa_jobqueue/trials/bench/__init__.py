"""Measuring the queue on your own database."""
