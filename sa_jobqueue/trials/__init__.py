"""Commands that try the queue out."""
