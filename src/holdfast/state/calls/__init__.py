"""State of one call: its scope, its drafts, and answers stored for repeated calls."""
