"""Wires, the transports to a server: streamable HTTP, a program, an object in this process."""
