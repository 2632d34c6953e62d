"""A program for each peer, and those of this library: started once, they do a task at a time (see `task.serve`)."""
