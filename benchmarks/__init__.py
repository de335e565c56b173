"""Benchmarks that can be repeated with `make bench`. Each table compares within one run, as a ratio."""
