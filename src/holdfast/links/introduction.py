"""What a link states about its user at a handshake, and which era it takes there.

For code that wraps a link, and learns of its user only after the link was made.
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
    """One link's."""

    def __init__(self, server: str, settings: CurrentSettings, lifecycle: LinkLifecycle) -> None:
        self._server = server
        self._settings = settings
        self._lifecycle = lifecycle

    @property
    def ours(self) -> Ours:
        """Client info and capabilities, as they are stated at a handshake."""
        return self._settings.now.ours

    def introduce(self, info: Mapping[str, Any], capabilities: Mapping[str, Any]) -> None:
        """Set client info and add capabilities, before the handshake: a 2025 server learns of them only there."""
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
        """Which era to take where the server offers both; without effect after the first handshake."""
        if not self._lifecycle.bring_up.numbers:
            self._settings.change(replace(self._settings.now, prefers=era))

    def assume(self, version: str) -> None:
        """The server speaks this version of 2026, as far as the user knows: over HTTP, the first use needs no
        handshake. If it turns out not to, one is made. Without effect after the first handshake."""
        self.prefer(Era.Y2026)
        if not self._lifecycle.bring_up.numbers and version in VERSIONS[Era.Y2026]:
            self._settings.change(replace(self._settings.now, assumed=version))
