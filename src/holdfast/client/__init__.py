"""For authors of agents: servers as declared, runs, leases, typed calls. `holdfast` itself has the public names."""
