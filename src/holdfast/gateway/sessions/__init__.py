"""Clients' sessions: begun, found, put to rest, ended."""
