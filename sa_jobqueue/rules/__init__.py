"""The rules of the queue as values and pure functions: no SQL, no models."""
