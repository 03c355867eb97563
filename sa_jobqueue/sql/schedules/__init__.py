"""Statements about schedules."""
