"""The gateway: many servers behind one endpoint, with sessions that hold. `holdfast serve` runs it."""
