"""Log lines for operators: which events are lines, how lines look, how they reach stderr."""
