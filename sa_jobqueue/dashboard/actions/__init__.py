"""What viewers may do on the pages."""
