"""The circuit of a server."""

import pytest

from holdfast.core.circuit import REST_CAP, Circuit
from holdfast.core.lifecycle import CircuitState
from holdfast.core.verdicts import Broke, Seen, is_transport_fault


def opened(at: float = 100.0) -> Circuit:
    circuit = Circuit(threshold=3, spacing=1.0)
    for n in range(3):
        moment = at - 10 + 5 * n
        circuit.failed(moment - 0.1, moment)
    return circuit


@pytest.mark.promise("link.circuit")
def test_it_opens_after_failures_in_a_row_and_not_before() -> None:
    circuit = Circuit(threshold=3, spacing=1.0)
    assert not circuit.failed(0.9, 1)
    assert not circuit.failed(9.9, 10)
    circuit.succeeded()
    assert not circuit.failed(19.9, 20)
    assert not circuit.failed(29.9, 30)
    assert circuit.refusal(30) is None
    assert circuit.failed(39.9, 40)
    assert circuit.state is CircuitState.OPEN
    assert circuit.refusal(40.5) == pytest.approx(0.5)


@pytest.mark.promise("link.circuit")
def test_failures_close_together_count_once() -> None:
    circuit = Circuit(threshold=3, spacing=1.0)
    for n in range(100):
        circuit.failed(0.5, 1 + n / 200)
    assert circuit.failures == 1
    assert not circuit.failed(1.0, 3)  # it was under way when the first was counted
    assert circuit.failures == 1


@pytest.mark.promise("link.circuit")
def test_half_open_lets_one_trial_through_which_decides() -> None:
    circuit = opened()
    assert circuit.refusal(100.5)
    assert circuit.refusal(101.1) is None
    assert circuit.refusal(101.2)  # one at a time
    circuit.failed(101.1, 103)
    assert circuit.state is CircuitState.OPEN
    assert circuit.refusal(104) == pytest.approx(1)  # twice as long
    assert circuit.refusal(105.1) is None
    circuit.succeeded()
    assert circuit.state is CircuitState.CLOSED
    assert circuit.refusal(105.2) is None


@pytest.mark.promise("link.circuit")
def test_a_trial_that_was_given_up_lets_another_through() -> None:
    circuit = opened()
    assert circuit.refusal(102) is None
    circuit.gave_up()
    assert circuit.refusal(102) is None


@pytest.mark.promise("link.circuit")
def test_the_rest_has_a_cap() -> None:
    circuit = opened()
    now = 100.0
    for _ in range(20):
        now += REST_CAP + 1
        assert circuit.refusal(now) is None
        circuit.failed(now, now + 2)
        now += 2
    assert circuit.refusal(now) is not None
    assert circuit.refusal(now + REST_CAP + 0.1) is None


@pytest.mark.promise("link.circuit")
@pytest.mark.parametrize(
    ("seen", "others", "counts"),
    [
        (Seen(broke=Broke.CONNECT), False, True),
        (Seen(broke=Broke.AFTER_SEND), True, True),
        (Seen(broke=Broke.IN_ANSWER, status=200), True, True),
        (Seen(broke=Broke.CHILD_DIED), True, True),
        (Seen(status=502), True, True),
        (Seen(status=504), True, True),
        (Seen(status=500), False, False),
        (Seen(status=501, code=-32603), False, False),
        (Seen(broke=Broke.NOT_AN_ANSWER, status=200), False, False),
        (Seen(broke=Broke.NO_ANSWER_IN_TIME), False, True),
        (Seen(broke=Broke.NO_ANSWER_IN_TIME), True, False),
        (Seen(code=-32000, text="connection closed"), False, True),
    ],
)
def test_only_what_tells_of_the_server_counts(seen: Seen, others: bool, counts: bool) -> None:
    assert is_transport_fault(seen, others) is counts


@pytest.mark.promise("link.circuit")
def test_a_threshold_of_0_never_opens_it() -> None:
    circuit = Circuit(threshold=0)
    for moment in range(1000):
        assert not circuit.failed(float(moment), moment + 0.5)
    assert circuit.refusal(2000.0) is None
