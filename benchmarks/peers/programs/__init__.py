"""A program for each peer, and for this library. It starts once and does one task at a time (see `task.serve`)."""
