"""What becomes of jobs that break a claim."""
