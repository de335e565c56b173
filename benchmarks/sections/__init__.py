"""The sections of `make bench`, one a file: each compares ours with the raw thing or with another library in one run."""
