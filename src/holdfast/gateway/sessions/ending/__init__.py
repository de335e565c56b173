"""How long sessions live, and how they end."""
