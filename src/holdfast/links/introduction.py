"""What a link declares about its user at a handshake, and which era it prefers there.

For code that wraps a link and knows its user only after the link was created.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.core.eras import VERSIONS, Era
from holdfast.core.handshake import Ours, includes
from holdfast.errors import UsageError
from holdfast.links.lifecycle.lifecycle import LinkLifecycle
from holdfast.links.settings import CurrentSettings


class Introduction:
    """The introduction of one link's user."""

    def __init__(self, server: str, settings: CurrentSettings, lifecycle: LinkLifecycle) -> None:
        self._server = server
        self._settings = settings
        self._lifecycle = lifecycle

    @property
    def ours(self) -> Ours:
        """Client info and capabilities, as declared at a handshake."""
        return self._settings.now.ours

    def introduce(self, info: Mapping[str, Any], capabilities: Mapping[str, Any]) -> None:
        """Set client info and add capabilities.
        Must be called before the handshake, the only place where a 2025 server gets them.
        """
        generation = self._lifecycle.generation
        if (
            generation is not None
            and generation.era is Era.Y2025
            and not includes(self.ours.capabilities, capabilities)
        ):
            missing = sorted(set(capabilities) - set(self.ours.capabilities))
            raise UsageError(
                f"the handshake with {self._server!r} was made without {missing}",
                server=self._server,
                remedy="give capabilities= to the link's Options, or introduce before its first use",
            )
        self._settings.change(self._settings.now.introduced(info, capabilities))

    def prefer(self, era: Era) -> None:
        """Set the era to use where the server offers both, whether it holds a session there or not. Without effect
        after the first handshake."""
        if not self._lifecycle.bring_up.numbers:
            self._settings.change(replace(self._settings.now, prefers=era, asked=True))

    def assume(self, version: str) -> None:
        """Assume that the server speaks this version of 2026: over HTTP, the first use then needs no handshake. If
        the assumption is wrong, a handshake is made. Without effect after the first handshake, and where 2025 is
        pinned."""
        if self._settings.now.pinned is Era.Y2025:
            return
        self.prefer(Era.Y2026)
        if not self._lifecycle.bring_up.numbers and version in VERSIONS[Era.Y2026]:
            self._settings.change(replace(self._settings.now, assumed=version))
