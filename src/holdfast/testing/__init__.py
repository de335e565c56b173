"""Shipped for tests, ours and yours: the suite that every store passes, and a machine that looks for differences.

It owns proofs, and needs `pip install "holdfast[testing]"`. It refuses to be imported by the product.
"""

from holdfast.testing.stores import StoreSuite

__all__ = ["StoreSuite"]
