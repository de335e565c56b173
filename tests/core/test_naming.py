"""Names of tools outside their server: safe, short, unique and stable."""

import pytest

from holdfast.core.naming import LONGEST, public_name, public_names


@pytest.mark.promise("integrations.naming")
def test_names_are_safe_short_unique_and_stable() -> None:
    assert public_name("git", "push") == "git__push"
    odd = public_name("git.hub", "push it")
    assert odd.startswith("git_hub__push_it_")
    long = public_name("s" * 40, "t" * 40)
    assert len(long) == LONGEST
    assert long == public_name("s" * 40, "t" * 40)
    assert long != public_name("s" * 40, "t" * 41)
    assert (
        public_name("a_", "b") != public_name("a", "_b")
        or len(set(public_names([("a_", "b"), ("a", "_b")]).values())) == 2
    )
