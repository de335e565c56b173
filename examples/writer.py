"""A helper that drafts, criticises and revises, and a scripted model for clients that offer none.

Used by writer_fastmcp.py and writer_mcpserver.py.
"""

import os

import holdfast


class Studio(holdfast.SessionState):
    """What the session itself keeps; the writer beside it has a state of its own."""

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
    "critique": "Name what is wrong with this text, a line each: {text}",
    "revise": "Rewrite this text: {text}. Mend: {points}",
}


def prompt(task: str, topic: str, draft: Draft) -> str:
    return PROMPTS[task].format(topic=topic, text=draft.text, points=", ".join(draft.points))


def scripted(task: str, topic: str, draft: Draft, iteration: int) -> str:
    """What a model might say: fewer complaints with each round."""
    if task == "draft":
        return f"{topic} is interesting."
    if task == "critique":
        return "\n".join(["too short", "too vague", "no example"][iteration:])
    return f"{draft.text} (revised {iteration + 1})"
