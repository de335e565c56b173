"""State classes: values that come back equal or are refused by name, versions and migrations."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, PrivateAttr, SecretStr, computed_field

import holdfast
from holdfast.core.models import Principal
from holdfast.state.model import SessionState, migrate
from holdfast.state.sessions import Sessions
from holdfast.state.storage.entries import KIND
from holdfast.stores import open_store

pytestmark = pytest.mark.anyio

ALICE = Principal("alice")


class Basket(holdfast.SessionState):
    items: list[str] = []
    count: int = 0
    note: str = ""
    price: float = 0.0
    anything: Any = None


@pytest.mark.promise("state.bad-input")
async def test_a_value_that_would_not_come_back_is_refused_by_name() -> None:
    sessions = holdfast.Sessions(Basket)
    session = await sessions.begin()
    for value, said in (
        (datetime(2026, 1, 1, tzinfo=UTC), "anything"),
        ({1: "whole numbers are no keys"}, "anything"),
        (object(), "anything|JSON"),
        (("a", "tuple"), "anything"),
        (b"\xff", "JSON|anything"),
        (float("nan"), "anything"),
    ):
        with pytest.raises(holdfast.errors.UnstorableValue, match=said):
            async with session.edit("set") as draft:
                draft.anything = value
    with pytest.raises(holdfast.errors.UnstorableValue, match="price"):
        async with session.edit("set") as draft:
            draft.price = float("inf")
    with pytest.raises(holdfast.UsageError, match=r"(?s)does not validate.*items\.0"):
        async with session.edit("set") as draft:
            draft.items.append(7)  # type: ignore[arg-type]
    assert await session.read() == Basket()
    assert session.rev == 1


@pytest.mark.promise("state.bad-input")
async def test_types_that_json_does_not_have_come_back_equal() -> None:
    class Rich(holdfast.SessionState):
        when: datetime | None = None
        price: Decimal = Decimal(0)
        id: UUID | None = None
        tags: set[str] = Field(default_factory=set[str])
        numbers: dict[int, tuple[str, ...]] = Field(default_factory=dict[int, tuple[str, ...]])

    sessions = holdfast.Sessions(Rich)
    session = await sessions.begin()
    rich = Rich(
        when=datetime(2026, 7, 28, tzinfo=UTC), price=Decimal("1.10"), id=UUID(int=7), tags={"a"}, numbers={1: ("x",)}
    )
    async with session.edit() as draft:
        for name in Rich.model_fields:
            setattr(draft, name, getattr(rich, name))
    assert (await sessions.find(session.handle)).state == rich


class Item(BaseModel):
    name: str = Field("", alias="articleName")


class Special(Item):
    price: int = 0


class Kept(holdfast.SessionState):
    label: str = Field("", alias="articleLabel")
    things: list[Item] = []
    secret: SecretStr = SecretStr("")
    anything: Any = None
    hidden: str = Field("", exclude=True)
    _private: str = PrivateAttr("")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> str:
        return self.label * 2


@pytest.mark.promise("state.bad-input")
async def test_what_is_written_comes_back_equal_or_is_refused_by_name() -> None:
    sessions = holdfast.Sessions(Kept)
    session = await sessions.begin(state=Kept(articleLabel="moss"))
    assert session.state.twice == "mossmoss"
    await session.update(lambda state: state.things.append(Item(articleName="fig")))
    found = (await sessions.find(session.handle)).state
    assert (found.label, found.things) == ("moss", [Item(articleName="fig")])

    def private(state: Kept) -> None:
        state._private = "x"

    for change, said in (
        (lambda state: state.things.append(Special(articleName="x", price=9)), "things"),
        (lambda state: setattr(state, "secret", SecretStr("hunter2")), "secret"),
        (lambda state: setattr(state, "anything", Item()), "anything"),
        (lambda state: setattr(state, "hidden", "x"), "hidden"),
        (private, "outside its declared fields"),
    ):
        with pytest.raises(holdfast.errors.UnstorableValue, match=said):
            await session.update(change)
    for state, error in (
        (Kept(secret=SecretStr("x")), holdfast.errors.UnstorableValue),
        (Kept(anything=(1, 2)), holdfast.errors.UnstorableValue),
        (Kept(anything=b"\xff"), holdfast.errors.UnstorableValue),
        (type("More", (Kept,), {})(), holdfast.UsageError),
    ):
        with pytest.raises(error):
            await sessions.begin(state=state)
    with pytest.raises(holdfast.UsageError, match="'version' is taken by SessionState itself"):

        class Taken(holdfast.SessionState):
            version: str = ""  # type: ignore[assignment, misc]


@pytest.mark.promise("state.versions")
async def test_older_state_is_brought_up_and_newer_is_refused(url: str) -> None:
    class Draft1(SessionState):
        text: str = ""
        notes: list[str] = Field(default_factory=list)

    class Draft3(SessionState, version=3):
        text: str = ""
        critiques: list[str] = Field(default_factory=list)
        words: int = 0

        @migrate(from_version=1)
        def _v1(raw: dict[str, Any]) -> dict[str, Any]:  # type: ignore[misc]  # noqa: N805
            return {"text": raw["text"], "critiques": raw["notes"]}

        @migrate(from_version=2)
        def _v2(raw: dict[str, Any]) -> dict[str, Any]:  # type: ignore[misc]  # noqa: N805
            return {**raw, "words": len(raw["text"].split())}

    async with open_store(url) as store:
        old = await Sessions(Draft1, store, name="draft").begin(ALICE, Draft1(text="two words", notes=["short"]))
        new = await Sessions(Draft3, store, name="draft").find(old.handle, ALICE)
        assert (new.state.critiques, new.state.words) == (["short"], 2)
        async with new.edit():
            pass  # read by newer code, and written back as newer
        stored = await store.get(KIND, old.handle)
        assert stored is not None
        assert stored.data["v"] == 3  # type: ignore[index, call-overload]
        with pytest.raises(holdfast.errors.CorruptRecord, match="version 3"):
            await Sessions(Draft1, store, name="draft").find(old.handle, ALICE)

    class Raises(SessionState, version=2):
        @migrate(from_version=1)
        def _v1(raw: dict[str, Any]) -> dict[str, Any]:  # type: ignore[misc]  # noqa: N805
            raise ValueError("no")

    with pytest.raises(holdfast.errors.CorruptRecord, match="migration of Raises"):
        Raises.read({"v": 1, "state": {}}, "x")
    with pytest.raises(holdfast.UsageError, match="no default"):

        class Wants(SessionState):
            name: str

    with pytest.raises(holdfast.UsageError, match="no migration from version 1"):

        class Gap(SessionState, version=3):
            @migrate(from_version=2)
            def _v2(raw: dict[str, Any]) -> dict[str, Any]:  # type: ignore[misc]  # noqa: N805
                return raw


@pytest.mark.promise("state.versions")
async def test_a_migration_in_place_keeps_history_and_classes_inherit_theirs() -> None:
    class Old(holdfast.SessionState):
        items: list[dict[str, Any]] = []

    class New(holdfast.SessionState, version=2):
        items: list[dict[str, Any]] = []

        @holdfast.state.migrate(from_version=1)
        @staticmethod
        def _v1(raw: dict[str, Any]) -> dict[str, Any]:
            for item in raw["items"]:
                item["quantity"] = item.pop("count")
            return raw

    class Newer(New):
        pass

    assert (Newer.version, list(Newer.migrations)) == (2, [1])
    async with holdfast.open_store("memory:") as store:
        old = await holdfast.Sessions(Old, store, name="n").begin(state=Old(items=[{"count": 1}]))
        new = await holdfast.Sessions(New, store, name="n").find(old.handle)
        await new.update(lambda state: state.items.append({"quantity": 2}))
        assert (await new.undo()).items == [{"quantity": 1}]
