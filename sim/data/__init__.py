"""Data sets on the command line: what there is, what is in it, where it comes from."""
