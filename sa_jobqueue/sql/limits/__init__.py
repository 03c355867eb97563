"""Statements about limits, rates and turns of keys."""
