"""The same stores as the stores' own tests."""

from tests.stores.conftest import url

__all__ = ["url"]
