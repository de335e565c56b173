"""The parts of `StoreSuite`, one in each file."""
