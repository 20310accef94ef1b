"""Places of a key in a script's or recipe's text: in YAML by its parser's marks, in shells beside other words of the command."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlplan.planner.configs.writing.texts import _in_yaml

RECIPE = """\
# a recipe of ours
defaults: ../base.yaml
policy:
  micro: 1          # of one GPU
  cfg:
    enabled: true
    kwargs: {}
  flow: {a: 1, b: 2}
  notes: |
    two
    lines
cluster:
  gpus: 8
"""


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("policy.micro", 4, "  micro: 1          # of", "  micro: 4          # of"),
        ("policy.flow.b", 3, "b: 2}", "b: 3}"),
        ("policy.flow.c", 3, "b: 2}", "b: 2, c: 3}"),
        ("cluster.nodes", 2, "  gpus: 8\n", "  gpus: 8\n  nodes: 2\n"),
        ("cluster.deep.er", 2, "  gpus: 8\n", "  gpus: 8\n  deep:\n    er: 2\n"),
        ("policy.cfg.kwargs.seqs", 2, "kwargs: {}", "kwargs: {seqs: 2}"),
        ("policy.last", "x", "    lines\n", "    lines\n  last: x\n"),
        ("policy.cfg.enabled", False, "enabled: true", "enabled: false"),
        ("seed", 1, "  gpus: 8\n", "  gpus: 8\nseed: 1\n"),
    ],
)
def test_a_key_of_yaml_is_changed_where_it_stands_or_added_behind_its_relatives(
    key, value, old, new
):
    (text,) = _in_yaml(RECIPE, key, value)
    assert text == RECIPE.replace(old, new)


def test_no_place_is_proposed_where_a_mapping_stands_or_the_file_is_none():
    assert not list(_in_yaml(RECIPE, "policy.cfg", 1))
    assert not list(_in_yaml(RECIPE, "policy.micro.inner", 1))
    assert not list(_in_yaml("- a\n- b\n", "a", 1))
    assert not list(_in_yaml("a: [1\n", "a", 1))


NAMES = st.sampled_from(["a", "b", "c"])
TREES = st.recursive(
    st.integers(0, 9), lambda inner: st.dictionaries(NAMES, inner, min_size=1), max_leaves=6
)


@given(
    tree=st.dictionaries(NAMES, TREES, min_size=1),
    key=st.lists(NAMES, min_size=1, max_size=3),
    flow=st.booleans(),
)
def test_what_is_proposed_says_the_key_and_all_else_as_before(tree, key, flow):
    text = yaml.safe_dump(tree, default_flow_style=flow)
    for new in _in_yaml(text, ".".join(key), 42):
        said = yaml.safe_load(new)
        expected = yaml.safe_load(text)
        holder = expected
        for each in key[:-1]:
            holder = holder.setdefault(each, {})
        holder[key[-1]] = 42
        assert said == expected
