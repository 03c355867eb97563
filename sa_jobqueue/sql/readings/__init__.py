"""Statements that only read: statistics, depths, reasons, health."""
