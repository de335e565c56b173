"""Calls of 2026 clients that wait while their server asks: parked, answered by a retry, or ended by their lifetime."""
