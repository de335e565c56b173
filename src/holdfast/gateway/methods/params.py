"""Parameters of requests: the error for those that are wrong, and the check of a URI."""

from holdfast.core.eras import INVALID_PARAMS
from holdfast.core.exact import is_unicode
from holdfast.errors import ErrorAnswer
from holdfast.gateway.names.seen_uris import LONGEST_URI


def invalid(what: str) -> ErrorAnswer:
    """Parameters of a request are wrong."""
    return ErrorAnswer(what, message=what, code=INVALID_PARAMS)


def checked_uri(uri: object) -> str:
    """A URI that a client names."""
    if not isinstance(uri, str) or len(uri) > LONGEST_URI:
        raise invalid(f"a resource is named by its uri, of at most {LONGEST_URI} characters")
    if not is_unicode(uri):
        raise invalid("uri has a lone surrogate, half a character, which no URI may have")
    return uri
