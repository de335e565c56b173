"""Pure decisions: records, lifecycles, events, values.

This package has no I/O, `await`, logging or third-party import; the layers above call its functions and act on the
result.
"""
