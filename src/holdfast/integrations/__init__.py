"""Adapters to LangChain, FastMCP and their like. Owns translation; refuses logic of its own."""
