"""What becomes of events: log lines, an audit trail, metrics, spans. One file, or one folder, a sink."""
