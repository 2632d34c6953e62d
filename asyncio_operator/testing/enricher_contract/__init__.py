"""The contract of enrichers: the rules that `check_enricher` checks."""
