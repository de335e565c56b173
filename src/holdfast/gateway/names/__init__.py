"""Which server has a name or a URI."""
