"""The same real stores as the stores' own tests."""

from tests.stores.conftest import forking, postgres, url, valkey

__all__ = ["forking", "postgres", "url", "valkey"]
