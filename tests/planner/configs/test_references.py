"""References of configurations: what OmegaConf makes of a whole tree is what is made of the part that they reach."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlplan.planner.configs.reading import references
from rlplan.planner.configs.reading.references import REFERS, References

KEYS = ("a", "b", "c")
PLACES = tuple(".".join(path) for path in ("a", "b", "c", "aa", "ab", "bc", "ca", "abc", "bca"))
LEAVES = st.one_of(
    st.sampled_from([1, 2.5, True, None, "word", "1e6", "???", "a\\b", "${a.", "plain.word"]),
    st.sampled_from(PLACES).map("${{{}}}".format),
    st.sampled_from(PLACES).map("say ${{{}}} twice".format),
    st.sampled_from(PLACES).map("${{.{}}}".format),
    st.sampled_from(PLACES).map("${{..{}}}".format),
    st.sampled_from(PLACES).map("${{max:${{.{}}},2}}".format),
    st.tuples(st.sampled_from(PLACES), st.integers(1, 9)).map(
        lambda each: f"${{mul:${{{each[0]}}},{each[1]}}}"
    ),
    st.tuples(st.sampled_from(PLACES), st.sampled_from(PLACES)).map(
        lambda each: f"${{max:${{{each[0]}}},${{add:${{{each[1]}}},1}}}}"
    ),
    st.sampled_from(["${oc.env:UNSET_HERE,4}", "${oc.select:a.b,7}", "${a.${b.c}}", "\\${a}"]),
    st.lists(st.sampled_from([3, "x", "${b}", "${c.a}", "${.b}"]), max_size=2),
)
TREES = st.dictionaries(
    st.sampled_from(KEYS),
    st.recursive(
        LEAVES, lambda inner: st.dictionaries(st.sampled_from(KEYS), inner, min_size=1, max_size=3)
    ),
    min_size=1,
)


def leaves_of(data, parents=()):
    for key, value in data.items():
        path = (*parents, key)
        if isinstance(value, dict) and value:
            yield from leaves_of(value, path)
        elif REFERS in str(value):
            yield path, value


def by_whole_tree(data, path):
    """Return what OmegaConf says of a leaf in all that there is; None where it refuses it."""
    try:
        node = references._tree_of(data)
        for part in path:
            node = node[part]
        return [OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node]
    except OmegaConfBaseException:
        return None


@given(TREES)
def test_what_references_reach_says_what_the_whole_tree_does(data):
    leaves = list(leaves_of(data))
    followed = References(data=data, paths=[path for path, _ in leaves])
    for path, value in leaves:
        try:
            found = [followed.followed(path, value)]
        except LookupError:
            found = None
        assert repr(found) == repr(by_whole_tree(data, path)), (path, value)


def test_a_place_is_looked_up_and_a_sum_has_only_what_it_reaches():
    triple = "${mul:${a.c},3}"
    data = {
        "a": {"b": 4, "c": "${a.b}"},
        "b": {"a": triple, "b": ["x"] * 9},
        "c": {"a": "${a.c}"},
    }
    paths = [("a", "c"), ("b", "a"), ("c", "a")]
    followed = References(data=data, paths=paths)
    assert followed.followed(("c", "a"), "${a.c}") == 4
    assert followed._tree is None
    assert followed.followed(("b", "a"), triple) == 12
    assert [*followed._reached()["b"]] == ["a"]


@pytest.mark.parametrize(
    "value", ["${..b}", ["${.b}"], "${a.${b}}", "\\${a}", "${eval:1+1}", "${ a }"]
)
def test_a_reference_that_is_not_plain_has_the_whole_tree(value):
    followed = References(data={"a": 1, "b": value}, paths=[("b",)])
    assert followed._reached() is None


def test_a_chain_of_references_may_be_as_long_as_it_is():
    data = {f"k{each}": f"${{k{each + 1}}}" for each in range(3000)} | {"k3000": 4}
    followed = References(data=data, paths=[(key,) for key in data])
    assert followed.followed(("k0",), data["k0"]) == 4
