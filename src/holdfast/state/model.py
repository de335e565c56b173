"""The typed state of a session: a Pydantic model with a version, and migrations from older versions.

A record without a way to this version is `CorruptRecord`. One of a newer version can be read where a migration back was
declared, by the newer code or by this one, and is never written by older code.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from holdfast.core.values import JSON, members
from holdfast.errors import CorruptRecord, UnstorableValue, UsageError
from holdfast.state.storage.entries import back, differences

Migration = Callable[[dict[str, Any]], dict[str, Any]]
F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound="SessionState")
_FROM = "__holdfast_from_version__"
FROZEN = "__holdfast_frozen__"
"""In the dictionary of a state that may not be changed."""
_BACK = "__holdfast_back_from_version__"


NEWER = "upgrade"
"""The phase in an error about a record that newer code has written: no damage, and over when the upgrade is."""


def migrate(*, from_version: int, to_version: int | None = None) -> Callable[[F], F]:
    """Marks a function of a state class that makes the next version's data out of `from_version`'s. With a `to_version`
    before that, it is the way back: what the older code reads while both are running."""
    if to_version not in (None, from_version + 1, from_version - 1):
        raise UsageError(
            f"a migration leads to the next version or the one before, not from {from_version} to {to_version}",
            remedy="write a function for each step",
        )

    def mark(function: F) -> F:
        inner = function.__func__ if isinstance(function, staticmethod) else function
        setattr(inner, _BACK if to_version == from_version - 1 else _FROM, from_version)
        return cast("F", staticmethod(inner))

    return mark


PLAIN = frozenset((str, int, float, bool, type(None)))


def _copied(value: Any) -> Any:
    """A deep copy, without what `copy.deepcopy` needs for values that have no cycles and can't be changed."""
    kind = cast("type[object]", type(value))
    if kind in PLAIN:
        return value
    if kind is list:
        return [each if type(each) in PLAIN else _copied(each) for each in cast("list[Any]", value)]
    if kind is dict and all(type(name) in PLAIN for name in cast("dict[Any, Any]", value)):
        return {
            name: each if type(each) in PLAIN else _copied(each) for name, each in cast("dict[Any, Any]", value).items()
        }
    return copy.deepcopy(value)


class SessionState(BaseModel):
    """`class Basket(SessionState, version=2): items: list[str] = []`. Every field needs a default: a session begins
    with them."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, ser_json_inf_nan="constants")
    version: ClassVar[int] = 1
    migrations: ClassVar[dict[int, Migration]] = {}
    ways_back: ClassVar[dict[int, Migration]] = {}

    def __init_subclass__(cls, version: int | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if version is None:  # a class derived from a state, or a parametrised generic one, has the same version
            version = cls.version
        taken = [
            name for name in ("version", "migrations", "ways_back") if name in vars(cls).get("__annotations__", {})
        ]
        if taken:
            raise UsageError(
                f"{cls.__name__}: {taken[0]!r} is taken by SessionState itself", remedy="give the field another name"
            )
        if type(version) is not int or version < 1:
            raise UsageError(f"{cls.__name__}: version={version!r} is not a positive whole number")
        cls.version = version
        found: dict[int, Migration] = dict(cls.migrations)
        ways: dict[int, Migration] = dict(cls.ways_back)
        for value in vars(cls).values():
            function = value.__func__ if isinstance(value, staticmethod) else value
            start = getattr(function, _FROM, None)
            if start is not None:
                found[start] = cast("Migration", function)
            start = getattr(function, _BACK, None)
            if start is not None:
                ways[start] = cast("Migration", function)
        cls.migrations, cls.ways_back = found, ways

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        required = [name for name, field in cls.model_fields.items() if field.is_required()]
        if required:
            raise UsageError(
                f"{cls.__name__}: {', '.join(required)} has no default", remedy="a session begins with the defaults"
            )
        missing = [number for number in range(1, cls.version) if number not in cls.migrations]
        if missing and cls.migrations:
            raise UsageError(
                f"{cls.__name__} has no migration from version {missing[0]}",
                remedy=f"add a function marked @migrate(from_version={missing[0]})",
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if FROZEN in self.__dict__:
            raise UsageError(
                f"this tool only reads its session, and {name!r} would not be kept",
                remedy="declare the tool with `writes` instead of `reads`",
            )
        super().__setattr__(name, value)

    def __copy__(self) -> Self:
        copied = super().__copy__()
        cast("dict[str, Any]", copied.__dict__).pop(FROZEN, None)
        return copied

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        copied = super().__deepcopy__(memo)
        cast("dict[str, Any]", copied.__dict__).pop(FROZEN, None)
        return copied

    @classmethod
    def read(cls, data: JSON, id: str) -> "SessionState":
        """Load the state in `data`, of the record `id`, migrated to this version."""
        if not isinstance(data, dict) or not isinstance(data.get("v"), int) or not isinstance(data.get("state"), dict):
            raise CorruptRecord(f"the record {id!r} has no state", id=id)
        version, state = cast("int", data["v"]), cast("dict[str, Any]", data["state"])
        if version > cls.version:
            state, version = cls._of_newer(data, state, version, id), cls.version
        if version < cls.version:
            state = copy.deepcopy(state)  # a migration may change it in place
        while version < cls.version:
            step = cls.migrations.get(version)
            if step is None:
                raise CorruptRecord(
                    f"{cls.__name__} has no migration from version {version}",
                    id=id,
                    remedy=f"add a function marked @migrate(from_version={version})",
                )
            state = _walked(cls, cls.migrations, state, [version], id)
            version += 1
        try:
            return cls.model_validate(state, by_name=True, by_alias=False)
        except ValidationError as error:
            raise CorruptRecord(
                f"the state of {id!r} does not validate as {cls.__name__}: {_places(error)}",
                id=id,
                remedy="if the class has changed, raise its version= and add a migration; "
                "if it is another kind of state, give each Sessions its own name=",
            ) from error

    @classmethod
    def _of_newer(cls, data: dict[str, Any], state: dict[str, Any], version: int, id: str) -> dict[str, Any]:
        """The state as this older code reads it: as the newer code wrote it for older ones, or by a way back that this
        code has itself."""
        written = members(members(data.get("older")).get(str(cls.version)))
        if written:
            return members(back({"v": cls.version, "state": state}, written)["state"])
        if all(step in cls.ways_back for step in range(cls.version + 1, version + 1)):
            return _walked(cls, cls.ways_back, copy.deepcopy(state), range(version, cls.version, -1), id)
        raise CorruptRecord(
            f"the state of {id!r} has version {version}, and this code knows {cls.version}",
            id=id,
            phase=NEWER,
            remedy="run the newer code everywhere, or declare a way back in it: "
            f"@migrate(from_version={cls.version + 1}, to_version={cls.version})",
        )

    @classmethod
    def is_newer(cls, data: JSON) -> bool:
        """Whether newer code wrote the `data` of a record: then it is not written here, as fields would be lost."""
        version = members(data).get("v")
        return isinstance(version, int) and version > cls.version

    @classmethod
    def to_record(cls, state: dict[str, Any], id: str = "") -> dict[str, Any]:
        """What the record `id` keeps of a `state` that is written: its version, itself, and for older code what is
        different there, as far back as the class has ways back (`min_reader`)."""
        record: dict[str, Any] = {"v": cls.version, "state": state}
        older: dict[str, Any] = {}
        version, before = cls.version, state
        while version in cls.ways_back:
            before = _walked(cls, cls.ways_back, copy.deepcopy(before), [version], id)
            version -= 1
            older[str(version)] = differences(before, state)
        return record | ({"min_reader": version, "older": older} if older else {})

    def to_data(self) -> dict[str, Any]:
        """The state as plain JSON, by the fields' own names, without computed fields."""
        return self.model_dump(mode="json", round_trip=True, by_alias=False, warnings=False)


def _walked(
    kind: type[SessionState],
    steps: Mapping[int, Migration],
    state: dict[str, Any],
    versions: Iterable[int],
    id: str,
) -> dict[str, Any]:
    """The state after these steps."""
    for version in versions:
        try:
            state = steps[version](state)
        except Exception as error:
            raise CorruptRecord(
                f"the migration of {kind.__name__} from version {version} raised {error!r:.200}", id=id
            ) from error
    return state


def _is_json(draft: SessionState, name: str) -> bool:
    try:
        draft.model_dump(mode="json", round_trip=True, by_alias=False, warnings=False, include={name})
    except ValueError:
        return False
    return True


def _places(error: ValidationError) -> str:
    """The places and reasons of a validation error, without the values, which are the caller's data."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in found)[:400]


def copy_of_read(state: M) -> M:
    """A deep copy of a state as it was read: nothing in it is there twice, and nothing points back."""
    kind = type(state)
    if kind.__deepcopy__ is not SessionState.__deepcopy__ or state.__pydantic_private__ or state.__pydantic_extra__:
        return state.model_copy(deep=True)
    made = kind.__new__(kind)
    values = cast("dict[str, Any]", state.__dict__)
    object.__setattr__(made, "__dict__", {name: _copied(value) for name, value in values.items() if name != FROZEN})
    object.__setattr__(made, "__pydantic_fields_set__", set(state.__pydantic_fields_set__))
    object.__setattr__(made, "__pydantic_extra__", None)
    object.__setattr__(made, "__pydantic_private__", None)
    return made


def become(state: SessionState, other: SessionState) -> None:
    """Make a state equal to another of its class, for those who have it at hand; `other` is not used afterwards."""
    for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_private__"):
        object.__setattr__(state, slot, getattr(other, slot))


def checked(draft: M, kind: type[M], label: str, id: str = "") -> tuple[M, dict[str, Any]]:
    """The state as it will be read back, and its stored form.
    Raises an error that names the field: nested lists and dictionaries may have been changed without validation, and
    not every type survives JSON.
    """
    if type(draft) is not kind:
        raise UsageError(
            f"{label}: the state must be a {kind.__name__}, not a {type(draft).__name__}",
            id=id,
            remedy=f"give a {kind.__name__}",
        )
    try:
        data = draft.to_data()
    except ValueError as error:
        name = next((name for name in kind.model_fields if not _is_json(draft, name)), "")
        raise UnstorableValue(
            f"{label}: {name or 'the state'} can't be written as JSON: {error}"[:500], path=f"state.{name}".rstrip(".")
        ) from error
    try:
        again = kind.model_validate(data, by_name=True, by_alias=False)
    except ValidationError as error:
        raise UsageError(f"{label}: the state does not validate: {_places(error)}", id=id) from error
    if again == draft:
        return again, data
    for name in kind.model_fields:
        mine, back = getattr(draft, name), getattr(again, name)
        if mine != back:
            raise UnstorableValue(
                f"{label}: {name} = {mine!r:.80} would be read back as {back!r:.80}",
                path=f"state.{name}",
                remedy="declare the field with the exact type of its value",
            )
    raise UnstorableValue(
        f"{label}: {kind.__name__} has data outside its declared fields", path="state", remedy="keep it in a field"
    )
