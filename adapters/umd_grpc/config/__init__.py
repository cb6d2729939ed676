"""The configuration of `umd serve`: one table of fields, from which file, flags and documentation come."""
