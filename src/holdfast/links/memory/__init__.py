"""Where a link keeps its session beyond its own life."""
