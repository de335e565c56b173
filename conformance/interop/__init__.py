"""Other projects' servers behind links and the gateway, and their clients in front of it."""
