"""The checks, a module for each group. `catalogue.py` lists them."""
