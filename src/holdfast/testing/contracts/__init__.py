"""The parts of `StoreSuite`, one a file."""
