"""A request of an SDK session, and how the session wants it sent."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.links.calls.handlers import OnProgress, OnResumeToken


class SessionRequest(NamedTuple):
    """A request that crosses from one era to the other."""

    method: str
    params: Mapping[str, Any]
    safe: bool | None
    headers: Mapping[str, str]
    timeout: float | None
    on_progress: OnProgress | None
    id: str | int | None
    sharer: object | None
    resume: str | None
    on_resume_token: OnResumeToken | None
