"""Event streams towards a client: what is kept of them, and what an event id may be."""

import pytest

from holdfast.gateway.streams import Streams


@pytest.mark.promise("gateway.hostile")
@pytest.mark.parametrize("number", ["9" * 4400, "9" * 16, "-1", "１", "", "1e3"])
def test_an_event_id_that_nobody_gave_resumes_the_clients_own_stream(number: str) -> None:
    streams = Streams()
    answer = streams.answer()
    answer.add({"n": 1})
    assert streams.resume(f"{answer.id}-{number}") == (streams.own, 0)
    assert streams.resume(f"{answer.id}-0") == (answer, 0)
