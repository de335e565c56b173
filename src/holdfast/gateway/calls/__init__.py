"""One call on its way to a server: whose it is, over which link it goes, and what of it is sent again."""
