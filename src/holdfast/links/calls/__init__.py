"""What one request does: sent, judged, repeated where that is safe, answered."""
