"""How a link comes up, heals and goes down."""
