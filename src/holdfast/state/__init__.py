"""Typed session state and companions, for authors of servers. Owns identity and versions; refuses last-write-wins."""
