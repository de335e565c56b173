"""The features, a subject each file. Importing this fills the table."""

from tests.eras.cells import FEATURES, cases

from tests.eras.features import handshake  # isort: skip  # the order of the table
from tests.eras.features import tools  # isort: skip
from tests.eras.features import resources  # isort: skip
from tests.eras.features import calls  # isort: skip
from tests.eras.features import questions  # isort: skip
from tests.eras.features import streams  # isort: skip
from tests.eras.features import extensions  # isort: skip

__all__ = ["FEATURES", "calls", "cases", "extensions", "handshake", "questions", "resources", "streams", "tools"]
