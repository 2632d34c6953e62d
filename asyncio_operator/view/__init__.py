"""How figures are shown: statistics of an enrichment, tables for a terminal and a notebook, and progress that moves."""
