"""The chores of every worker: leases, cancels, timeouts, rescue, pruning, pressure, presence."""
