"""Memories: where a link stores its session so that a later link can adopt it."""
