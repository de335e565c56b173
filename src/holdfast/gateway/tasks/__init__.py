"""Tasks of both forms: their ids as clients and servers see them, the messages that name them, listens for them."""
