"""One live, self-healing connection to one server: http, stdio, in-process. Owns recovery; refuses to know tools."""
