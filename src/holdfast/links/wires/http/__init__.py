"""Streamable HTTP, with an HTTP/1.1 client of our own."""
