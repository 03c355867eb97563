"""Statements of workflows: adding members, moving them on, what they take, and how they go."""
