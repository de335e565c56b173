"""One request of a client: its caller, era, session and headers, and the way to reach the client meanwhile."""

from dataclasses import dataclass, field

from holdfast.core.eras import Era
from holdfast.core.models import ANONYMOUS, Principal
from holdfast.errors import HoldfastError
from holdfast.gateway.backends.links.passed_headers import HasHeaders
from holdfast.gateway.parking.call import ParkableCall
from holdfast.gateway.sessions.questions import ReplyChannel
from holdfast.gateway.sessions.record import Client
from holdfast.gateway.sessions.session import GatewaySession
from holdfast.gateway.tasks.ids import scope_of
from holdfast.links.link import Link
from holdfast.links.wires.base import Loss


@dataclass(slots=True)
class RequestContext:
    """What a front knows of one request, for the code that answers it."""

    principal: Principal
    era: Era
    session: GatewaySession | None = None
    client: Client = field(default_factory=Client)
    headers: HasHeaders | None = None
    """Of the request, by their names in lower case."""
    reply_channel: ReplyChannel | None = None
    parkable: ParkableCall | None = None
    """The call, if it can wait while its server asks the client."""
    reporting: tuple[Link, Loss] | None = None
    """A loss that the answer reports."""
    backend: str | None = None
    """The server that it went to, once it is known."""
    failure: HoldfastError | None = None
    """The error that the answer was made from."""

    def enter(self, session: GatewaySession) -> None:
        """The request belongs to a session."""
        self.session = session

    def identify(self, client: Client) -> None:
        """The client that the request comes from is known."""
        self.client = client

    def will_report(self, link: Link, loss: Loss) -> None:
        """The answer reports a loss."""
        self.reporting = link, loss

    def report_as(self, other: "RequestContext") -> None:
        """The answer is the one to another context's request: it reports the same loss and failure."""
        self.reporting, self.backend, self.failure = other.reporting, other.backend, other.failure

    def forget_headers(self) -> None:
        """The request that brought the headers is over; what was begun for it goes on."""
        self.headers = None

    def goes_to(self, backend: str) -> None:
        """The request goes to a server."""
        self.backend = backend

    def failed_with(self, error: HoldfastError) -> None:
        """The answer is made from an error."""
        self.failure = error

    def reported(self) -> None:
        """The client has read the answer."""
        if self.reporting is not None:
            link, loss = self.reporting
            link.losses.reported(loss)

    @property
    def task_scope(self) -> str:
        """Who may use the tasks that this request makes."""
        return self.session.tasks.scope if self.session is not None else scope_of(self.principal, None)

    @property
    def is_anonymous(self) -> bool:
        return self.principal == ANONYMOUS
