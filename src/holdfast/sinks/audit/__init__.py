"""The audit trail: who did what, as JSON lines, each with the hash of the one before. One chain for each process."""
