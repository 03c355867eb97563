"""What an operator reads about the queue and its server."""
