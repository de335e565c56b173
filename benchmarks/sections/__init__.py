"""The sections of `make bench`, one in each file; each compares Holdfast with raw drivers or another library in one run."""
