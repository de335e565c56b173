"""Runs: the links shared by an agent's calls, their leases, and which run a call belongs to."""
