"""Background tasks of FastMCP (`task=True`) under an idempotency key: the same call gets the same task.

A task's work is done after its call was answered, in a transaction of its own. The key belongs to the call, whose
result is the task's id.
"""

from holdfast.state.calls.transaction import Transaction
from holdfast.state.frameworks.places import place_of, take_with_result
from holdfast.state.frameworks.taking import takes_of
from holdfast.state.identity import Identity
from holdfast.state.tool_errors import showing


async def take_task(function: object, caller: Identity, transaction: Transaction, also: type[Exception]) -> None:
    """Take the result of a call that starts a task, on the sessions that the tool's `function` writes."""
    with showing(also):
        writing = [each for each in takes_of(function) if each.writes]
        places = [await place_of(each.sessions, caller, each.argument) for each in writing]
        if transaction.keyed is not None and places:
            shared = any(each.shared for each in places)
            place = transaction.keyed.place((each.handle for each in places), shared=shared)
            await take_with_result(transaction, places[0].sessions.table, [], place)
