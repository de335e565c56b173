"""What the official suite drives: our client, and a server for the gateway."""
