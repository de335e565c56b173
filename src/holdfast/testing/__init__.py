"""Tools for tests: the suite that every store must pass, checks for servers with sessions, and MCP servers with planned
faults, over HTTP and stdio. The suite needs `pip install "holdfast[testing]"`.
"""

from holdfast.testing.fault_exchange import Request
from holdfast.testing.fault_plan import LOST_SESSION, OTHER_REFUSALS, Fault, Refusal
from holdfast.testing.fault_server import FaultServer
from holdfast.testing.server_doctor import Finding, Report, UncheckedWarning, Verdict, server_doctor
from holdfast.testing.server_under_test import Expiry, ServerUnderTest
from holdfast.testing.stdio_server import StdioFault, stdio_target
from holdfast.testing.stores import StoreSuite

__all__ = [
    "LOST_SESSION",
    "OTHER_REFUSALS",
    "Expiry",
    "Fault",
    "FaultServer",
    "Finding",
    "Refusal",
    "Report",
    "Request",
    "ServerUnderTest",
    "StdioFault",
    "StoreSuite",
    "UncheckedWarning",
    "Verdict",
    "server_doctor",
    "stdio_target",
]
