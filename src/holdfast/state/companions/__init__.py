"""Companions: stateful objects kept per session and kind, with phases and a log."""
