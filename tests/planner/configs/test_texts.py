"""Places of a key in a script's or recipe's text: in YAML by its parser's marks, in TOML by its tables' lines, in shells beside other words of the command."""

import tomllib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlplan.planner.configs.writing.texts import _in_toml, _in_yaml

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


NAMED = """\
shared: &shared
  a: &size 4
one:
  <<: *shared
  b: *size     # as there
two: *shared
"""


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("shared.a", "a: &size 4", "a: &size 8"),
        ("one.b", "b: *size ", "b: 8 "),
        ("one.a", "as there\n", "as there\n  a: 8\n"),
        ("three", "two: *shared\n", "two: *shared\nthree: 8\n"),
    ],
)
def test_a_value_that_others_name_keeps_its_name_and_one_that_names_another_gets_its_own(
    key, old, new
):
    (text,) = _in_yaml(NAMED, key, 8)
    assert text == NAMED.replace(old, new)
    assert yaml.safe_load(text)


def test_nothing_is_proposed_inside_what_is_named_elsewhere():
    assert not list(_in_yaml(NAMED, "two.a", 8))


TOML = """\
# a run of ours
max_steps = 10  # few

[trainer.model]
# its length
seq_len = 4096
"a".b = 'x'

[[sources]]
name = "one"

[inference]
names = [
    "a",
]

# the end
"""


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("max_steps", 20, "max_steps = 10  #", "max_steps = 20  #"),
        ("trainer.model.seq_len", 8192, "seq_len = 4096", "seq_len = 8192"),
        ("trainer.model.a.b", "y", "b = 'x'", 'b = "y"'),
        ("trainer.model.seq_len", None, "seq_len = 4096\n", ""),
        ("seed", 1, "few\n", "few\nseed = 1\n"),
        ("trainer.model.ac", "None", "b = 'x'\n", "b = 'x'\nac = \"None\"\n"),
        ("inference.tp", 2, "\n]\n\n", "\n]\ntp = 2\n\n"),
        ("new.er", True, "# the end\n", "# the end\n\n[new]\ner = true\n"),
    ],
)
def test_a_key_of_toml_is_changed_where_it_stands_or_added_to_its_table(key, value, old, new):
    text = next(_in_toml(TOML, key, value))
    assert text == TOML.replace(old, new, 1)
    assert tomllib.loads(text)


def test_a_key_of_toml_that_gets_a_value_loses_its_tables_and_no_comment():
    text = "[a]\nx = 1\n[a.ac]\nfreq = 1\n# of b\n\n[b]\ny = 2\n[a.ac.more]\nz = 3\n"
    new = next(_in_toml(text, "a.ac", "None"))
    assert new == '[a]\nx = 1\nac = "None"\n# of b\n\n[b]\ny = 2\n'
    assert next(_in_toml(text, "a.ac.freq", 2)) == text.replace("freq = 1", "freq = 2")


def as_toml(tree, way=()):
    own = [f"{name} = {value}" for name, value in tree.items() if not isinstance(value, dict)]
    lines = [*([f"[{'.'.join(way)}]"] if way else []), *own, ""]
    for name, value in tree.items():
        lines += as_toml(value, (*way, name)) if isinstance(value, dict) else []
    return lines


@given(
    tree=st.dictionaries(NAMES, TREES, min_size=1),
    key=st.lists(NAMES, min_size=1, max_size=3),
)
def test_the_first_that_is_proposed_of_toml_says_the_key_and_all_else_as_before(tree, key):
    expected = holder = tomllib.loads("\n".join(as_toml(tree)))
    for each in key[:-1]:
        holder = holder.setdefault(each, {})
        if not isinstance(holder, dict):
            return
    if isinstance(holder.get(key[-1]), dict):
        return
    holder[key[-1]] = 42
    text = next(_in_toml("\n".join(as_toml(tree)), ".".join(key), 42))
    assert tomllib.loads(text) == expected
