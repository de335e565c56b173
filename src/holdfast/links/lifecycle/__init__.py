"""How a link comes up, recovers and goes down."""
