"""The gateway's settings and the file that holds them."""
