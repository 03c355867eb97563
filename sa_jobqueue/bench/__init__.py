"""What `sa-jobqueue bench` does: measures the queue on the user's own database, in a schema of its own."""
