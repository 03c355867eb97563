"""What makes jobs: one by one (`jobs`), from the rows of a query (`select`), and for past ticks of a schedule (`backfill`)."""
