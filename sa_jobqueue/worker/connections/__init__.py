"""The worker's own connections: opened, set up, watched and closed."""
