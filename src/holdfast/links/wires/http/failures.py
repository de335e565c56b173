"""Failures of HTTP exchanges: the exceptions, where the exchange broke, and the description."""

import os
import socket
import ssl

from holdfast.core.verdicts import Broke

PLAIN = "if the server speaks plain HTTP, use a URL that begins with http://"

_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG"})


class Broken(OSError):
    """The other end closed, or the pool did, before the answer was complete."""


class ProxyFailed(OSError):
    """The proxy could not be reached, or refused: the server has seen nothing of the request."""


class NotHttp(ValueError):
    """What came is not HTTP."""


FAILURES: tuple[type[BaseException], ...] = (OSError, ValueError, RuntimeError)
"""What a request can raise; timeouts are OSErrors. ValueError: a header with a line break. RuntimeError: uvloop's, for
a closed transport."""


def where_it_broke(error: BaseException, body_sent: bool, answering: bool) -> Broke:
    """Where an exchange broke, from the exception and from how far it had come."""
    if not body_sent:
        return Broke.CONNECT
    if isinstance(error, TimeoutError):
        return Broke.NO_ANSWER_IN_TIME
    if isinstance(error, NotHttp):
        return Broke.NOT_AN_ANSWER
    return Broke.IN_ANSWER if answering else Broke.AFTER_SEND


def describe(error: BaseException) -> str:
    """An exception of the network in a few words, without the request."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {error}"[:300]
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        not_tls = f"the answer is not TLS ({reason}): {PLAIN}"
        return (not_tls if reason in _NOT_TLS else f"the TLS handshake failed: {reason}")[:300]
    if isinstance(error, socket.gaierror):
        return f"the host name does not resolve: {error}"[:300]
    if isinstance(error, TimeoutError):
        return str(error) or "no answer in time"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return (str(error) or type(error).__name__)[:300]
