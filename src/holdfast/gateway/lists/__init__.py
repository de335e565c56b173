"""Lists as clients get them, and the clients that follow their changes."""
