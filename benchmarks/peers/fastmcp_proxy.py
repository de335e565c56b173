"""`python benchmarks/peers/fastmcp_proxy.py default|stateful BACKEND PORT`: FastMCP's proxies, as its documentation starts them.

It runs in FastMCP's own environment, in which Holdfast is not installed.
"""

# pyright: reportMissingImports=false
import sys

from fastmcp.server import create_proxy
from fastmcp.server.providers.proxy import FastMCPProxy, StatefulProxyClient

way, backend, port = sys.argv[1:]
if way == "default":
    proxy = create_proxy(backend, name="peer")
else:
    client = StatefulProxyClient(backend)
    proxy = FastMCPProxy(client_factory=client.new_stateful, name="peer")
proxy.run(transport="http", host="127.0.0.1", port=int(port), path="/mcp", show_banner=False, log_level="warning")
