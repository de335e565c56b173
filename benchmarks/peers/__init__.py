"""`make bench-peers`: the gateway beside other MCP gateways, each in an environment of its own."""
