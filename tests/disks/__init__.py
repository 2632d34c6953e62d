"""Law Y5: state, caches and journals on a disk, whose process is killed at each write or at random, or whose files are
damaged.

`runs` has the order of a run, `kills.c` the moments, and `state`, `cache` and `journal` what has to be there."""
