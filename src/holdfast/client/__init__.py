"""For authors of agents: server declarations, runs, leases, typed calls. The public names are in `holdfast`."""
