"""Figures that anyone can make again: `make bench`. Each table compares within one run, as a ratio."""
