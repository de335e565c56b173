"""Programs over stdio, started by the warden and ended with all their descendants."""
