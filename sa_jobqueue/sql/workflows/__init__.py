"""Statements about workflows."""
