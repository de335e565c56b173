"""Other projects' test suites, run with their connections swapped for ours. See run.py."""
