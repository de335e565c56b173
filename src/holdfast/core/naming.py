"""Names for tools outside their server: accepted by every model, unique, at most 48 characters, and stable.

A name does not depend on other tools unless two clash, so that it does not change when another server comes up.
"""

import hashlib
import re
from collections.abc import Iterable

LONGEST_PREFIX = 128  # characters; several gateways and mounts, one behind the other
LONGEST = 48  # characters; hosts put prefixes of their own before it, and models allow 64
CALLED_AS = "dev.holdfast/called-as"
"""In `_meta` of a call that a gateway passes on under a server's own name: the name that its caller used."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_PREFIX = re.compile(r"[A-Za-z0-9_./-]*").fullmatch


def public_name(server: str, tool: str) -> str:
    """`server__tool`, with a digest where characters were replaced or cut."""
    plain = f"{server}__{tool}"
    safe = _UNSAFE.sub("_", plain)
    if safe == plain and len(safe) <= LONGEST:
        return safe
    digest = hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe[: LONGEST - 9]}_{digest}"


def prefix_of(called_as: object, own: object) -> str:
    """What a gateway or a mount puts before a tool's own name; empty if that is unknown."""
    if not isinstance(called_as, str) or not isinstance(own, str) or not own or not called_as.endswith(own):
        return ""
    prefix = called_as.removesuffix(own)
    return prefix if len(prefix) <= LONGEST_PREFIX and _PREFIX(prefix) else ""


def public_names(tools: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """A name for each (server, tool), all different."""
    names: dict[tuple[str, str], str] = {}
    taken: set[str] = set()
    for server, tool in tools:
        name = public_name(server, tool)
        number = 2
        while name in taken:  # two that have the same digest
            name = f"{public_name(server, tool)[: LONGEST - 4]}_{number}"
            number += 1
        taken.add(name)
        names[server, tool] = name
    return names
