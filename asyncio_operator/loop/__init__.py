"""One event loop in a thread of its own per process, and how other threads work with it."""
