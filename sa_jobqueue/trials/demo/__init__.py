"""A demonstration with a killed worker."""
