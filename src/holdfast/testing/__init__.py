"""Shipped for tests, ours and yours: the suite that every store passes, a machine that looks for differences, and MCP
servers with faults by plan, over HTTP and over stdio.

It owns proofs, and needs `pip install "holdfast[testing]"`. It refuses to be imported by the product.
"""

from holdfast.testing.fault_plan import LOST_SESSION, OTHER_REFUSALS, Fault, Refusal
from holdfast.testing.fault_server import FaultServer
from holdfast.testing.stdio_server import StdioFault, stdio_target
from holdfast.testing.stores import StoreSuite

__all__ = [
    "LOST_SESSION",
    "OTHER_REFUSALS",
    "Fault",
    "FaultServer",
    "Refusal",
    "StdioFault",
    "StoreSuite",
    "stdio_target",
]
