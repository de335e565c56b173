"""The exception tree: four families, fields instead of prose, and safe to send between processes."""

import pickle

import pytest

import holdfast
from holdfast import errors

FAMILIES = {
    "Unavailable": "ConnectFailed StartTimeout StoreDown CircuitOpen PoolFull Busy NoBackend",
    "OutcomeUnknown": "ConnectionLost AnswerTimeout BadAnswer ChildDied WriteUnsettled",
    "Rejected": "ErrorAnswer Unauthorized SessionReplaced SessionExpired Forbidden NotFound Conflict WrongPhase Ended "
    "LimitReached CorruptRecord",
    "UsageError": "LeaseClosed UnstorableValue ConfigError",
}
_ALL = [name for members in FAMILIES.values() for name in members.split()]


@pytest.mark.promise("errors.tree")
def test_the_tree_is_exactly_the_four_families_and_all_of_it_is_public() -> None:
    for family, members in FAMILIES.items():
        parent = getattr(holdfast, family)
        assert parent.__bases__ == (holdfast.HoldfastError,)
        assert {cls.__name__ for cls in parent.__subclasses__() if not cls.__name__.startswith("_")} == set(
            members.split()
        )
    public = {name for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, Exception)}
    assert public <= set(holdfast.__all__)


@pytest.mark.promise("errors.tree")
@pytest.mark.parametrize("name", _ALL)
def test_an_error_keeps_its_fields_and_survives_pickling(name: str) -> None:
    cls = getattr(holdfast, name)
    extra = {"path": "data.x"} if name == "UnstorableValue" else {}
    error = cls("it broke", remedy="mend it", server="github", status=503, retry_after=2.0, stderr_tail="boom", **extra)
    assert str(error) == "it broke; mend it\n--- last lines of stderr ---\nboom"
    assert (error.server, error.status, error.retry_after, error.session) == ("github", 503, 2.0, None)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert vars(again) == vars(error)
    assert (str(again), again.args) == (str(error), error.args)
