"""Tasks: functions that become jobs, their options and registry."""
