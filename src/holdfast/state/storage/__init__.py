"""Sessions as records of a store: opening, reading, writing, and lookup by principal or connection."""
