"""Simulations on virtual time: `make simulate`. Each module has a function `main`, which prints what it found."""
