"""Streamable HTTP, with Holdfast's own HTTP/1.1 client."""
