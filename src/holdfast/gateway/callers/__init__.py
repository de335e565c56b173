"""Callers whose tokens others issue: JSON Web Tokens, a verifier of the operator's, and what clients need to log in."""
