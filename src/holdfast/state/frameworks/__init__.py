"""How sessions and companions reach tools on FastMCP and on the SDK's MCPServer."""
