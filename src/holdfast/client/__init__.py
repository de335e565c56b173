"""Runs, pool, leases: what an agent author uses. Owns scopes; refuses to speak to a socket itself."""
