"""`StoreSuite`: the whole contract of a store as one pytest class. Subclass it, say how to open your store, run pytest.

    class TestMyStore(StoreSuite):
        def open(self, clock):
            return MyStore(…, clock=clock)

Every test gets a store of its own kinds and ids, so a shared database need not be emptied in between. There are
no optional parts: a store passes whole.
"""

from holdfast.testing.contracts.claims import ClaimContract
from holdfast.testing.contracts.commits import CommitContract
from holdfast.testing.contracts.expiry import ExpiryContract
from holdfast.testing.contracts.logs import LogContract
from holdfast.testing.contracts.notices import NoticeContract
from holdfast.testing.contracts.races import RaceContract
from holdfast.testing.contracts.records import RecordContract
from holdfast.testing.contracts.scans import ScanContract
from holdfast.testing.contracts.turns import TurnContract
from holdfast.testing.contracts.values import ValueContract


class StoreSuite(
    RecordContract,
    ValueContract,
    LogContract,
    ExpiryContract,
    CommitContract,
    ClaimContract,
    TurnContract,
    ScanContract,
    NoticeContract,
    RaceContract,
):
    """Everything that `Store` promises. Override `open`."""
