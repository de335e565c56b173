"""Runs: the links that an agent's calls share, who leases them, and which run a call belongs to."""
