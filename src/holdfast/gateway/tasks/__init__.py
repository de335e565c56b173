"""Tasks of both forms: their ids as clients and servers see them, and the messages that name them."""
