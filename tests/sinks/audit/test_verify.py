"""A chain of audit lines: what is found of one that was altered, shortened, mixed or torn."""

import json

import pytest

from holdfast.sinks.audit.chain import Chain, hash_of, parts_of
from holdfast.sinks.audit.verify import END, Report, verify


def lines(count: int, chain: Chain | None = None) -> list[bytes]:
    chain = chain or Chain()
    return [chain.line({"at": "2026-01-01T00:00:00.000Z", "type": "call", "n": number}) for number in range(count)]


def checked(found: list[bytes]) -> Report:
    return verify((f"line {number}", line) for number, line in enumerate(found, 1))


@pytest.mark.promise("observe.audit-chain")
def test_a_whole_trail_holds_also_with_lines_of_two_processes_mixed() -> None:
    one, two = lines(5), lines(3)
    report = checked([one[0], two[0], one[1], one[2], two[1], two[2], one[3], one[4]])
    assert report.holds
    assert report.lines == 8
    assert sorted(chain.lines for chain in report.chains.values()) == [3, 5]


@pytest.mark.promise("observe.audit-chain")
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_removed_line_is_found_unless_it_is_the_last(place: int) -> None:
    found = lines(5)
    del found[place]
    report = checked(found)
    if place == 0:  # the rest may be the end of a trail whose beginning is in another file
        assert [chain.first for chain in report.chains.values()] == [1]
    else:
        assert len(report.faults) == 1
        assert "missing" in report.faults[0]


@pytest.mark.promise("observe.audit-chain")
@pytest.mark.parametrize("place", range(5))
def test_an_altered_line_is_found_wherever_it_is(place: int) -> None:
    found = lines(5)
    found[place] = found[place].replace(b'"type":"call"', b'"type":"cull"')
    report = checked(found)
    assert f"line {place + 1}: the line was changed" in report.faults[0]


@pytest.mark.promise("observe.audit-chain")
@pytest.mark.parametrize("place", range(4))
def test_a_line_that_was_altered_with_its_own_hash_is_found_by_the_next(place: int) -> None:
    found = lines(5)
    parts = parts_of(found[place])
    assert parts is not None
    body = parts[0].replace(b'"type":"call"', b'"type":"cull"')
    found[place] = body[:-1] + b',"hash":"' + hash_of(body).encode() + b'"}\n'
    report = checked(found)
    assert [fault.partition(":")[0] for fault in report.faults] == [f"line {place + 2}"]


@pytest.mark.promise("observe.audit-chain")
def test_swapped_and_doubled_lines_are_found() -> None:
    found = lines(5)
    assert not checked([found[0], found[2], found[1], found[3], found[4]]).holds
    assert not checked([*found, found[4]]).holds


@pytest.mark.promise("observe.audit-chain")
def test_a_torn_line_is_reported_and_the_trail_holds_up_to_it() -> None:
    found = lines(3)
    report = checked([*found[:2], found[2][:40] + b"\n", *lines(2)])
    assert report.holds
    assert report.torn == ["line 3"]
    assert [(chain.last, chain.ended) for chain in report.chains.values()] == [(1, False), (1, False)]


@pytest.mark.promise("observe.audit-chain")
def test_the_end_of_a_chain_and_its_gaps_are_read() -> None:
    chain = Chain()
    found = lines(2, chain)
    found += [chain.line({"type": "audit_gap", "dropped": 7}), chain.line({"type": END})]
    [read] = checked(found).chains.values()
    assert (read.ended, read.dropped, read.last) == (True, 7, 3)
    assert json.loads(found[-1])["hash"] == read.hash


@pytest.mark.promise("observe.audit-chain")
def test_what_is_no_audit_line_breaks_nothing() -> None:
    report = checked([b"\n", b"hello\n", b"{}\n", b"\xff\xfe\n", b'{"hash":"x"}\n'])
    assert len(report.torn) == 4
    assert not report.chains
