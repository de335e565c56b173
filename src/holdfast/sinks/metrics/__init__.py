"""Metrics: what is counted and measured, and how Prometheus and OpenTelemetry get it."""
