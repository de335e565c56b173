"""The gateway's links to servers: of sessions, shared, spare; and what is sent and kept with each."""
