"""A companion that drafts, criticises and revises, and a scripted model for clients that offer none.

Used by writer_fastmcp.py and writer_mcpserver.py.
"""

import os

import holdfast


class Studio(holdfast.SessionState):
    """The state of the session; the writer beside it has its own."""

    topic: str = ""


class Draft(holdfast.SessionState):
    text: str = ""
    points: list[str] = []


class Style(holdfast.state.CompanionOptions):
    temperature: float = 0.7
    max_tokens: int = 400


class Writer(holdfast.Companion[Draft, Style]):
    phases = {
        "empty": ["drafted"],
        "drafted": ["criticised"],
        "criticised": ["revised"],
        "revised": ["criticised", "done"],
        "done": ["drafted"],
    }


sessions = holdfast.Sessions(Studio, store=os.environ.get("STUDIO", "sqlite:///studio.db"))
writers = holdfast.Companions(Writer, sessions, options=Style())

PROMPTS = {
    "draft": "Write one sentence about {topic}.",
    "critique": "Name the faults of this text, one on each line: {text}",
    "revise": "Rewrite this text: {text}. Correct these faults: {points}",
}


def prompt(task: str, topic: str, draft: Draft) -> str:
    return PROMPTS[task].format(topic=topic, text=draft.text, points=", ".join(draft.points))


def scripted(task: str, topic: str, draft: Draft, iteration: int) -> str:
    """An answer in place of a model's: fewer faults with each round."""
    if task == "draft":
        return f"{topic} is interesting."
    if task == "critique":
        return "\n".join(["too short", "too vague", "no example"][iteration:])
    return f"{draft.text} (revised {iteration + 1})"
