"""Servers and proxies that the benchmarks measure against, each a program of its own."""
