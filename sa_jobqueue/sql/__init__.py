"""Statements, and what runs them: a module or a folder for each capability."""
