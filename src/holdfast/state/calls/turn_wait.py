"""How long a call that found a turn taken waits before it asks again. Pure: the caller sleeps."""

FIRST_WAIT = 0.004  # most turns are over by then
LONGEST_WAIT = 0.25  # a store can take four questions a second from each waiting process
QUICK_ROUNDS = 8  # asked this often, the turn is a long one, and the wait may grow
LONGEST_SILENCE = 1.0  # after which a waiter asks although it got no notice: one may have been lost
LISTEN_SECONDS = 1.0  # that a refused call waits until its process hears of releases
CROWDED_SECONDS = 1.0  # after a store has said that another process was in the way


def wait_before_asking(left: float, retry_after: float | None, rounds: int, chance: float) -> float | None:
    """Seconds to wait after `rounds` refusals; None if the deadline, `left` seconds away, is over by then.

    `chance`, from 0 to 1, spreads the processes that wait, so that none of them is always the last to ask. A holder
    that died has left `retry_after`: there is no use in asking much later than that.
    """
    if left <= 0:
        return None
    grown = min(LONGEST_WAIT, FIRST_WAIT * 1.5 ** max(0, rounds - QUICK_ROUNDS))
    wait = grown * (0.5 + chance)
    if retry_after is not None:
        wait = min(wait, max(retry_after, FIRST_WAIT))
    return min(wait, left)


def wait_for_notice(retry_after: float | None, rounds: int) -> float:
    """Seconds to wait for the notice of a release, after so many refusals, before asking without one."""
    wait = min(LONGEST_SILENCE, 0.125 * 2 ** min(rounds, 10))
    return wait if retry_after is None else min(wait, max(retry_after, FIRST_WAIT))


def give_way(since_refused: float | None, waited_here: bool, chance: float) -> float:
    """Seconds that the next call of this process waits before it asks, so that other processes get their share.

    Only where the turn passes within the process and another one was in the way a moment ago.
    """
    if not waited_here or since_refused is None or since_refused > CROWDED_SECONDS:
        return 0.0
    return 2 * FIRST_WAIT * chance
