"""A writer and a reader as companions, and the steps that tests make with them."""

import holdfast
from holdfast.core.models import Principal

ALICE = Principal("alice")


class Studio(holdfast.SessionState):
    topic: str = ""


class Draft(holdfast.SessionState):
    text: str = ""
    points: list[str] = []


class Style(holdfast.state.CompanionOptions):
    temperature: float = 0.7


class Writer(holdfast.Companion[Draft, Style]):
    phases = {
        "empty": ["drafted"],
        "drafted": ["criticised"],
        "criticised": ["revised"],
        "revised": ["criticised", "done"],
        "done": [],
    }


class Reader(holdfast.Companion[Draft, Style]):
    phases = {"idle": ["reading"], "reading": ["idle"]}


async def round_of(writer: Writer, number: int, points: list[str]) -> None:
    async with writer.step("critique", to="criticised") as turn:
        turn.record(list(points))
    async with writer.step("revision", to="revised") as turn:
        turn.state.text = f"text {number}"
        turn.record(turn.state.text)


async def drafted(writers: "holdfast.Companions[Writer]", session: "holdfast.Session[Studio]") -> Writer:
    writer = await writers.for_session(session)
    async with writer.step("draft", to="drafted") as turn:
        turn.note("query", "kelp")
        turn.state.text = "text"
        turn.record("text")
        turn.message("user", "write about kelp")
        turn.message("assistant", "text")
    return writer
