"""Pure decisions: records, lifecycles, events, values. It owns what is true and what follows from it.

There is no I/O, `await`, logging or third-party import here; the layers that have them call these functions.
"""
