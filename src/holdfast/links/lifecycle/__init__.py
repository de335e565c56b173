"""How a link connects, recovers and closes."""
