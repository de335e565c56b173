"""Pure decisions: records, lifecycles, events, values. It owns what is true and what follows from it.

It refuses I/O, `await`, logging and third-party imports; whoever needs the world calls down into it.
"""
