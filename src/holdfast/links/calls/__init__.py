"""One request: sent, judged, repeated where that is safe, answered."""
