"""The worker's own connections: how they are made, set up, watched and closed."""
