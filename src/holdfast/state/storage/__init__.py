"""Sessions as records of a store: opened, read, written, found by what they stand for."""
