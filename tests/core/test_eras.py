"""The two eras: probes, envelopes, headers, results, saved handshakes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.eras import (
    CLIENT_CAPABILITIES,
    PROTOCOL_VERSION,
    Era,
    Probe,
    Probed,
    header_value,
    headers_2026,
    read_probe,
    result_for_2025,
    result_in,
    stamp_2026,
    unstamp,
)
from holdfast.core.handshake import Handshake, Ours, Saved, includes, legal_session_id
from holdfast.core.models import ANONYMOUS, BackendSessionId, Principal


@pytest.mark.promise("link.probe")
@pytest.mark.parametrize(
    ("result", "code", "data", "probe"),
    [
        ({"supportedVersions": ["2026-07-28"]}, None, None, Probe(Probed.IS_2026, "2026-07-28", ("2026-07-28",))),
        ({"supportedVersions": ["2025-11-25"]}, None, None, Probe(Probed.IS_2025, None, ("2025-11-25",))),
        ({"supportedVersions": "2026-07-28"}, None, None, Probe(Probed.IS_2025)),
        ({}, None, None, Probe(Probed.IS_2025)),
        (None, -32601, None, Probe(Probed.IS_2025)),
        (None, -32600, None, Probe(Probed.IS_2025)),
        (None, None, None, Probe(Probed.IS_2025)),
        (None, -32022, {"supported": ["2026-07-28"]}, Probe(Probed.ASK_AGAIN, "2026-07-28", ("2026-07-28",))),
        (None, -32022, {"supported": ["2025-06-18"]}, Probe(Probed.IS_2025, None, ("2025-06-18",))),
        (None, -32022, {"supported": ["2031-01-01"]}, Probe(Probed.INCOMPATIBLE, None, ("2031-01-01",))),
        (None, -32022, {"supported": [7, None]}, Probe(Probed.IS_2025)),
        (None, -32022, "nonsense", Probe(Probed.IS_2025)),
    ],
)
def test_what_a_probe_tells(result: Any, code: int | None, data: object, probe: Probe) -> None:
    assert read_probe(result, code, data) == probe


@pytest.mark.promise("link.envelope")
def test_the_envelope_keeps_what_the_caller_said_of_itself() -> None:
    params = {"name": "x", "_meta": {CLIENT_CAPABILITIES: {"roots": {}}, PROTOCOL_VERSION: "1999"}}
    stamped = stamp_2026(params, "2026-07-28", {"name": "us"}, {"sampling": {}}, "info")
    assert stamped["_meta"][CLIENT_CAPABILITIES] == {"roots": {}}
    assert stamped["_meta"][PROTOCOL_VERSION] == "2026-07-28"
    assert params["_meta"][PROTOCOL_VERSION] == "1999"  # the caller's own is left alone
    assert unstamp(stamped) == {"name": "x"}
    assert unstamp({"a": 1, "_meta": {"mine": 2}}) == {"a": 1, "_meta": {"mine": 2}}
    assert unstamp({"_meta": {"mine": 2, PROTOCOL_VERSION: "x"}}) == {"_meta": {"mine": 2}}
    assert unstamp(None) is None


@pytest.mark.promise("link.envelope")
@given(st.text(max_size=50))
def test_a_header_value_is_always_legal(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return
    header = header_value(value)
    assert all(" " <= character <= "~" for character in header)
    assert header == header.strip()


@pytest.mark.promise("link.envelope")
def test_headers_repeat_method_and_name() -> None:
    assert headers_2026("tools/list", {}, "v") == {"mcp-protocol-version": "v", "mcp-method": "tools/list"}
    assert headers_2026("resources/read", {"uri": "a:b"}, "v")["mcp-name"] == "a:b"
    assert "mcp-name" not in headers_2026("tools/call", {"name": 7}, "v")


@pytest.mark.promise("link.envelope")
def test_a_result_is_shaped_for_who_reads_it() -> None:
    assert result_in(Era.Y2025, "tools/list", {"tools": []}) == {"tools": []}
    assert result_in(Era.Y2026, "tools/call", {"content": []}) == {"resultType": "complete", "content": []}
    listed = result_in(Era.Y2026, "tools/list", {"tools": [], "ttlMs": 5})
    assert listed == {"resultType": "complete", "ttlMs": 5, "cacheScope": "private", "tools": []}
    asked = {"resultType": "input_required", "requestState": "x"}
    assert result_in(Era.Y2026, "tools/call", asked) is asked


SAVED = Saved(
    BackendSessionId("abc"),
    Handshake(Era.Y2025, "2025-11-25", {"capabilities": {"tools": {}}, "serverInfo": {"name": "s"}}),
    Ours({"name": "us"}, {"roots": {"listChanged": True}}),
    Principal("alice"),
    "info",
    ("a:1",),
)


@pytest.mark.promise("link.memory")
def test_a_saved_session_survives_the_round_trip() -> None:
    assert Saved.from_json(SAVED.to_json()) == SAVED


@pytest.mark.promise("link.memory")
@pytest.mark.parametrize(
    "change",
    [
        {"session": "a b"}, {"session": "a\nb"}, {"session": 7}, {"session": ""}, {"era": "2031"}, {"era": None},
        {"version": 7}, {"greeting": []}, {"info": None}, {"capabilities": "x"}, {"subscriptions": [7]},
    ],
)  # fmt: skip
def test_what_we_did_not_save_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Saved.from_json({**SAVED.to_json(), **change})
    for nonsense in (None, [], "x", 7, {}):
        with pytest.raises(ValueError):
            Saved.from_json(nonsense)


@pytest.mark.promise("link.memory")
def test_a_saved_session_fits_only_who_can_still_do_all_of_it() -> None:
    alice = Principal("alice")
    assert SAVED.fits(Ours({}, {"roots": {"listChanged": True}, "sampling": {}}), alice, None)
    assert not SAVED.fits(Ours({}, {"roots": {"listChanged": False}}), alice, None)
    assert not SAVED.fits(Ours({}, {"sampling": {}}), alice, None)
    assert not SAVED.fits(Ours({}, {"roots": {"listChanged": True}}), ANONYMOUS, None)
    assert not SAVED.fits(Ours({}, {"roots": {"listChanged": True}}), alice, Era.Y2026)
    assert includes({"a": {"b": {}}}, {"a": {}})
    assert not includes({"a": {}}, {"a": {"b": {}}})
    assert not includes({"a": 1}, {"a": {}})
    assert legal_session_id("!~")
    assert not legal_session_id("é")
    assert not legal_session_id("x" * 1025)


@pytest.mark.promise("link.envelope")
def test_a_2026_result_for_a_2025_reader_has_nothing_of_2026() -> None:
    info = "io.modelcontextprotocol/serverInfo"
    full = {"resultType": "complete", "ttlMs": 5, "cacheScope": "public", "_meta": {info: {}, "mine": 1}}
    assert result_for_2025("tools/list", {**full, "tools": []}) == {"tools": [], "_meta": {"mine": 1}}
    assert result_for_2025("tools/call", {"content": [], "ttlMs": 5, "_meta": {info: {}}}) == {
        "content": [],
        "ttlMs": 5,
    }
    plain = {"content": [], "_meta": {"mine": 1}}
    assert result_for_2025("tools/call", plain) == plain
