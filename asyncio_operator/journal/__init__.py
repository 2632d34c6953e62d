"""Answers that are paid for once: a journal of them on a file system or an object store (laws J)."""
