"""Clients' sessions: begun, found, rested, ended."""
