"""Companions: stateful objects stored per session and kind, with phases and a log."""
