"""The settings of a link's sessions: what a request changes, what a saved session lacks, what a new one is told."""

import pytest

from holdfast.core.eras import Era
from holdfast.core.handshake import Handshake, Ours, Saved
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.links.settings import SessionSettings

OURS = Ours({"name": "x", "version": "1"}, {"roots": {}})


def saved(level: str | None = None, *uris: str) -> Saved:
    return Saved("id", Handshake(Era.Y2025, "2025-06-18", {}), OURS, ANONYMOUS, level, uris)  # type: ignore[arg-type]


@pytest.mark.promise("link.memory")
def test_settings_follow_the_requests_that_change_a_session() -> None:
    settings = SessionSettings(OURS, ANONYMOUS)
    settings = settings.after("logging/setLevel", {"level": "debug"})
    for uri in ("a", "b", "a"):
        settings = settings.after("resources/subscribe", {"uri": uri})
    settings = settings.after("resources/unsubscribe", {"uri": "a"}).after("resources/subscribe", {"uri": 7})
    assert (settings.log_level, settings.subscriptions) == ("debug", ("b",))
    assert settings.introduced({"name": "y"}, {"sampling": {}}).ours == Ours(
        {"name": "y"}, {"roots": {}, "sampling": {}}
    )


@pytest.mark.promise("link.memory")
def test_a_saved_session_gets_what_it_lacks_and_gives_what_it_has() -> None:
    mine = SessionSettings(OURS, ANONYMOUS, log_level="debug", subscriptions=("a", "b"))
    theirs = saved("info", "b", "c")
    assert mine.missing_in(theirs) == (("logging/setLevel", {"level": "debug"}), ("resources/subscribe", {"uri": "a"}))
    assert mine.missing_in(saved("debug", "a", "b")) == ()
    joined = mine.joined(theirs)
    assert (joined.log_level, joined.subscriptions) == ("debug", ("a", "b", "c"))
    assert SessionSettings(OURS, ANONYMOUS).joined(theirs).log_level == "info"
    assert mine.fits(theirs)
    assert not SessionSettings(OURS, Principal("someone")).fits(theirs)


@pytest.mark.promise("link.memory")
def test_a_new_session_is_told_a_log_level_only_where_the_server_logs() -> None:
    mine = SessionSettings(OURS, ANONYMOUS, log_level="debug", subscriptions=("a",))
    subscribe = ("resources/subscribe", {"uri": "a"})
    assert mine.for_new(Handshake(Era.Y2025, "2025-06-18", {"capabilities": {}})) == (subscribe,)
    logs = Handshake(Era.Y2025, "2025-06-18", {"capabilities": {"logging": {}}})
    assert mine.for_new(logs) == (("logging/setLevel", {"level": "debug"}), subscribe)
