"""Planted bugs: each is put into a copy of the package, and tests must fail (law Y4). `make mutants` runs them.

`bugs.toml` is the list: a sentence, the law that the bug breaks, and the text to replace. `bugs` reads it, `trees`
makes the copies, `search` runs the tests that are most likely to see a bug first, `witness` reports from inside of
them.
"""
