"""What one call does with sessions: its scope, its drafts, and answers kept for repeated calls."""
