"""Arguments, results and the rows that they name: how they are checked, stored and read again."""
