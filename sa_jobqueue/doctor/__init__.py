"""Whether all is well with the queue and the database it lives in."""
