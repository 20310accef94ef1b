"""Python programs read as literals: what their calls are given, as far as it is constant, and why it is not."""

import json
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.planner.configs.reading.given import GivenValue, flags_of
from rlplan.planner.configs.reading.python.literals import has_call, python_keys
from rlplan.planner.configs.reading.python.program import Program
from rlplan.planner.configs.reading.python.syntax import commands_of_notebook, tree_of
from rlplan.planner.configs.reading.python.values import Unknown
from rlplan.planner.configs.reading.sheet import PythonCall
from rlplan.planner.configs.shell.text import Text

CALLS = {"Config": PythonCall(), "Trainer": PythonCall(prefix="trainer.", first="model")}


def keys(tmp_path, text, **arguments):
    """Return what a program's calls are given."""
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    flags = {name: GivenValue(value=value, where="there") for name, value in arguments.items()}
    return python_keys(path, CALLS, flags)


def values(tmp_path, text, **arguments):
    """Return the known values by key."""
    flat = keys(tmp_path, text, **arguments).flat
    return {key: each.value for key, each in flat.items() if not each.gaps}


# What an expression behind `x=` is.
KNOWN = {
    "1024 * 4 + 2": 4098,
    "-3": -3,
    "2 ** 3 if False else 7": 7,
    "'a' + 'b'": "ab",
    "torch.bfloat16": "bfloat16",
    "[1, 'b', reward_length]": [1, "b", "reward_length"],
    "int('4') // 2": 2,
    "max(2, len([1, 2, 3]))": 3,
    "not torch.cuda.is_bf16_supported()": False,
    "torch.backends.mps.is_available()": False,
    "torch.device('cuda:0').type == 'cuda'": True,
    "os.environ.get('SIZE', 8)": 8,
    "f'{NAME}-run'": "big-run",
    "SIZES['small']": 3,
    "None or 5": 5,
    "'a' == 'b'": False,
    "CHANGING": 2,
    "[each for each in range(3)]": [0, 1, 2],
}
UNKNOWN = {
    "compute()": "is what a call returns",
    "missing": "is set nowhere in the program",
    "spec.size": "is known where it runs",
    "args.size": "is what --size says, which is not given",
    "10 / 0": "is no number",
    "os.getenv('MODEL_OF_NOBODY').strip()": "is the variable MODEL_OF_NOBODY, which is not set",
    "LOOP": "goes around in circles",
}
CONSTANTS = """
NAME = "big"
SIZES = {"small": 3}
CHANGING = 1
CHANGING = 2
LOOP = LOOP + 1
"""


@pytest.mark.parametrize("expression", KNOWN)
def test_a_constant_expression_is_followed(tmp_path, expression):
    assert values(tmp_path, f"{CONSTANTS}Config(x={expression})") == {"x": KNOWN[expression]}


@pytest.mark.parametrize("expression", UNKNOWN)
def test_of_any_other_the_reason_is_said_with_its_line(tmp_path, expression):
    found = keys(tmp_path, f"{CONSTANTS}Config(x={expression})").flat["x"]
    assert (found.gaps[0].reason, found.gaps[0].line) == (UNKNOWN[expression], 7)
    assert found.where.endswith("train.py:7")


def test_mappings_are_flat_and_results_of_other_calls_are_no_values(tmp_path):
    text = """
config = trl.Config("out", kwargs={"a": {"b": 1}}, **dict(c=2))
config.late = 3
Trainer("Qwen/Qwen3-8B", args=config, other=Config())
"""
    found = {"kwargs.a.b": 1, "c": 2, "trainer.model": "Qwen/Qwen3-8B", "late": 3}
    assert values(tmp_path, text) == found


def test_what_a_call_makes_of_its_first_argument_stands_for_it(tmp_path):
    """A model that is loaded, and wrapped, is still the one that was named."""
    text = """
other = Load("Qwen/Qwen3-4B")
model, tokenizer = Load(name="Qwen/Qwen3-8B")
model = Wrap(model, rank=8)
Trainer(model=model, reward=other)
"""
    calls = {**CALLS, "Load": PythonCall(prefix="load.", first="name"), "Wrap": PythonCall()}
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    flat = python_keys(path, calls, {}).flat
    assert flat["trainer.model"].value == "Qwen/Qwen3-8B"
    assert flat["trainer.reward"].value == "Qwen/Qwen3-4B"


OPTIONS = """
parser.add_argument("--num-samples", type=int, default=4)
parser.add_argument("--use_vllm", action="store_true")
@dataclass
class Arguments:
    rate: float = field(default=1e-6)
args = parser.parse_args()
Config(samples=args.num_samples, vllm=args.use_vllm, rate=script_args.rate)
"""


def test_options_are_what_they_are_given_or_their_defaults(tmp_path):
    assert values(tmp_path, OPTIONS) == {"samples": 4, "vllm": False, "rate": 1e-6}
    given = values(tmp_path, OPTIONS, num_samples=16, use_vllm=True)
    assert given == {"samples": 16, "vllm": True, "rate": 1e-6}
    assert keys(tmp_path, OPTIONS).options == {"num_samples", "use_vllm", "rate"}


def test_a_class_made_of_a_call_s_has_defaults_of_its_own(tmp_path):
    text = """
@dataclass
class Mine(trl.Config):
    samples: int = field(default=16, metadata={})
    names: list = field(default_factory=list)
    rate: float = compute()
"""
    found = keys(tmp_path, text)
    assert {key: each.value for key, each in found.defaults.items()} == {"samples": 16}
    assert found.flat == {}


def test_what_a_condition_of_constants_rules_out_is_not_there(tmp_path):
    text = """
lora = None
if args.use_lora:
    lora = 16
else:
    Config(no_adapter=True)
Config(rank=lora)
parser.add_argument("--use_lora", action="store_true")
"""
    assert values(tmp_path, text) == {"no_adapter": True, "rank": None}
    assert values(tmp_path, text, use_lora=True) == {"rank": 16}


def test_parameters_are_their_defaults_and_no_constants_of_the_same_name(tmp_path):
    text = """
lr = 1.0
def train(lr, steps=3):
    Config(lr=lr, steps=steps)
def other(): Trainer(lr=lr)
"""
    assert values(tmp_path, text) == {"steps": 3, "trainer.lr": 1.0}


def test_a_value_that_is_changed_in_place_is_followed(tmp_path):
    assert values(tmp_path, "n = 1\nn += 1\nConfig(n=n)") == {"n": 2}


@pytest.mark.parametrize("text", ["def f(:", "x = '\0'", "print 1"])
def test_what_is_no_python_is_refused(tmp_path, text):
    with pytest.raises(FileError, match="is not Python"):
        keys(tmp_path, text)
    assert not has_call(tmp_path / "train.py", ("Config",))


def test_doubling_texts_and_deep_sums_end(tmp_path):
    lines = [
        "a0 = 'x'",
        *(f"a{at} = a{at - 1} + a{at - 1}" for at in range(1, 60)),
        "Config(x=a59)",
    ]
    assert values(tmp_path, "\n".join(lines)) == {}
    assert values(tmp_path, f"Config(x={'+'.join(['1'] * 900)})") == {}
    assert values(tmp_path, f"Config(x=a{'.b' * 900}, y={'.'.join(['c'] * 900)}())") == {}


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@given(value=LITERALS)
def test_a_literal_is_itself(tmp_path_factory, value):
    assert values(tmp_path_factory.mktemp("a"), f"Config(x={value!r})") == {"x": value}


BESIDE = """
import yaml
SIZE = 2
BOTH = SIZE * 8
with open("first.yaml") as f:
    FIRST = yaml.safe_load(f)
with open("second.yaml") as f:
    SECOND = yaml.safe_load(f)
def load(path, deep=True):
    with open(path) as file:
        return yaml.safe_load(file)
def found(path):
    return search(path)
"""


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("from beside import BOTH\nConfig(x=BOTH)", {"x": 16}),
        ("from beside import BOTH as B\nConfig(x=B + 1)", {"x": 17}),
        ("import beside\nConfig(x=beside.SIZE)", {"x": 2}),
        ("import beside as b\nSIZE = 5\nConfig(x=b.BOTH, y=SIZE)", {"x": 16, "y": 5}),
        ("import beside\nbeside = Config(SIZE=1)\nConfig(x=beside.SIZE, y=1)", {"SIZE": 1, "x": 1, "y": 1}),
        ("from beside import FIRST, SECOND\nConfig(x=FIRST['a']['b'], y=SECOND['a'])", {"x": 3, "y": 4}),
        ("from beside import load\nc = load('second.yaml')\nConfig(x=c['a'], y=c.get('no', 9))", {"x": 4, "y": 9}),
        ("import beside\nconfig = beside.load(path='first.yaml')\nConfig(**config['a'])", {"b": 3}),
        ("c = OmegaConf.load('first.yaml')\nConfig(x=c.a.b)", {"x": 3}),
        ("c = yaml.safe_load(open('/etc/first.yaml'))\nConfig(x=c['a'], y=1)", {"y": 1}),
        ("from beside import found\nConfig(x=found('first.yaml'), y=1)", {"y": 1}),
        ("c = yaml.safe_load(open('a' * 999 + '.yaml'))\nConfig(x=c['a'], y=1)", {"y": 1}),
        (f"def f(x):\n  return x{'+x' * 2000}\nConfig(x=f(1), y=1)", {"y": 1}),
        ("from elsewhere import SIZE\nConfig(x=SIZE, y=1)", {"y": 1}),
    ],
)  # fmt: skip
def test_what_modules_and_files_beside_a_program_hold_is_known(tmp_path, monkeypatch, text, held):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text(BESIDE, encoding="utf-8")
    (tmp_path / "first.yaml").write_text("a: {b: 3}\n", encoding="utf-8")
    (tmp_path / "second.yaml").write_text("a: 4\n", encoding="utf-8")
    assert values(tmp_path, text) == held


def test_a_call_whose_result_is_not_known_tells_the_texts_that_it_is_given(tmp_path):
    text = "name = 'a/b'\nmodel = wrap(load(name, 'c', size=3), 'd')\nTrainer(model=model)"
    (gap,) = keys(tmp_path, text).flat["trainer.model"].gaps
    assert gap.texts == ("a/b", "c", "d")


def test_calls_of_a_module_of_one_s_own_are_no_library_s(tmp_path):
    program = tmp_path / "train.py"
    program.write_text("from mine import Config\nConfig()\n", encoding="utf-8")
    own = tmp_path / "mine.py"
    assert has_call(program, ("Config",), "library")
    own.write_text("class Config: ...\n", encoding="utf-8")
    assert not has_call(program, ("Config",), "library")
    own.write_text("from library import Config\n", encoding="utf-8")
    assert has_call(program, ("Config",), "library")


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("def run(size, more=1):\n  Config(x=size, y=more)\nrun(3, more=4)", {"x": 3, "y": 4}),
        ("def run(size):\n  Config(x=size)\nrun(3)\nrun(4)", {}),
        ("x = 5\ndef b(y):\n  Config(x=y)\ndef a(x):\n  b(x)\na(1)\na(2)", {}),
        ("x = 5\ndef b(y):\n  Config(x=y)\ndef a(x):\n  b(x + 1)\na(1)", {"x": 2}),
        ("class A:\n  def run(self, size):\n    Config(x=size)\nrun(3, 4)", {}),
        ("size = 5\ndef run(size):\n  Config(x=size)\nrun(size=size)", {"x": 5}),
        ("def load(n):\n  m = Trainer(model=n)\n  return m\nt = load('a')\nConfig(x=1)", {"trainer.model": "a", "x": 1}),
        ("t = Trainer(model='a')\nt.model = t.model.to('cpu')", {"trainer.model": "a"}),
        ("t = Trainer(model='a')\nt.model = other()", {}),
    ],
)  # fmt: skip
def test_what_a_function_is_given_in_one_place_is_its_parameter(tmp_path, text, held):
    assert values(tmp_path, text) == held


@pytest.mark.parametrize(
    "text",
    [
        "@around\ndef f():\n  return 4\nConfig(x=f())",
        "def f(n):\n  if n:\n    return 4\nConfig(x=f(0))",
        "def run(n, m=4):\n  Config(x=m)\nrun(1, **more)",
        "def run(n, m=4):\n  Config(x=m)\nrun(*more)",
        "def f(n, m=4):\n  return m\nConfig(x=f(*more, 5))",
        "n = 4\nfor n in (8, 16):\n  Config(x=n)",
        "d = {'n': 4}\nfor each in data:\n  d['n'] = each\nConfig(x=d['n'])",
        "d = {'n': 4}\nif compute():\n  d['n'] = 16\nConfig(x=d['n'])",
        "d = {'n': 4}\nd.pop('n')\nConfig(x=d['n'])",
        "def f(n):\n  if compute():\n    n = 8\n  return n\nConfig(x=f(4))",
        "n = int(os.environ['N'])\nConfig(x=n)",
        "Config(x=int(os.environ.get('WORLD_SIZE', 1)))",
        "model, n = load()\nConfig(x=n)",
    ],
)  # fmt: skip
def test_what_may_be_another_value_by_then_is_not_known(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    assert values(tmp_path, text) == {}


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n  return 4\ndef f():\n  return 16\nConfig(x=f())",
        "def run(n):\n  n = n * 2\n  Config(x=n)\nrun(4)",
        "def run(n=4):\n  n = n * 2\n  Config(x=n)\nrun()",
        "n = 4\nprint(n := 8)\nConfig(x=n)",
        "import held\nheld.D['n'] = 16\nConfig(x=held.D['n'])",
        "def change():\n  d['n'] = 16\nd = {'n': 4}\nchange()\nConfig(x=d['n'])",
        "def f(n):\n  for each in range(n):\n    n += 1\n  return n\nConfig(x=f(4))",
        "def f(n):\n  try:\n    return n\n  except ImportError:\n    return 8\nConfig(x=f(4))",
        "def f(d):\n  d.update(n=8)\n  return d['n']\nConfig(x=f({'n': 4}))",
        "class A:\n  n = 4\na = A()\na.n = 8\nConfig(x=a.n)",
        "class A:\n  def __init__(self):\n    self.n = 4\n  def more(self):\n    self.n = 8\na = A()\nConfig(x=a.n)",
        "d = yaml.safe_load(open('a.yaml'))\nd['n']['m'] = 16\nConfig(x=d['n']['m'])",
        "c = [4]\nd = c\nd[0] = 8\nConfig(x=c[0])",
        "c = dict(x=4)\nc.__setitem__('x', 8)\nConfig(**c)",
        "def f(**kept):\n  kept = {k: v for k, v in kept.items() if k in ('x', 'y')}\n  Config(**kept)\nf(x=4, z=3)",
        "def f(m):\n  m |= {'x': 8}\ndef run(c):\n  f(c)\n  Config(**c)\nrun(dict(x=4))",
        "n = 4\ndef f(x=n):\n  Config(x=x)\nn = 8\nf()",
        "def f(n):\n  g = lambda k=n: k\n  n = 10\n  Config(x=g())\nf(3)",
        "class A:\n  n = 4\ndef f():\n  A.n = 8\n  Config(x=A().n)\nf()",
        "def f(v):\n  Config(x=len(set(v)), y=len({v[0], v[1]}))\nf([1, 1, 2])",
        "def f(v):\n  Config(x=v.pop().strip())\nf([' a', ' b', ' c'])",
        "class A:\n  a: int = 1\ndef f(c):\n  c = {k: v for k, v in c.items() if k not in A.__annotations__}\n  Config(**c)\nf({'a': 2, 'x': 4})",
        "def pick(given, name):\n  return given if given is not None else C.get(name, 2)\nC = {'x': 4}\nConfig(x=pick(None, 'x'), y=pick(None, 'y'))",
    ],
)  # fmt: skip
def test_what_is_followed_to_a_call_is_what_python_gives_it(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "held", raising=False)
    (tmp_path / "a.yaml").write_text("n: {m: 4}\n", encoding="utf-8")
    (tmp_path / "held.py").write_text("D = {'n': 4}\n", encoding="utf-8")
    given = []
    exec(text, {"Config": lambda **held: given.append(held), "yaml": yaml})
    assert [values(tmp_path, text)] == given


ADDED = {
    ("'-n', '--n', type=int, default=4", "-n 8"): 8,
    ("'--number', dest='n', type=int, default=4", "--num 8"): 8,
    ("'--no_n', dest='n', action='store_false'", "--no_n"): False,
    ("'--no_n', dest='n', action='store_false'", ""): True,
    ("'--n', action=argparse.BooleanOptionalAction, default=True", "--no-n"): False,
    ("'--n', action='store_true'", "--n"): True,
    ("'--n', action='store_const', const=9, default=4", "--n"): None,
    ("'--n', action='count', default=0", "--n --n"): None,
    ("'--n', action='append', type=int", "--n 1 --n 2"): None,
    ("'--n', nargs='?', const=7, type=int, default=4", "--n"): None,
}


@pytest.mark.parametrize(("added", "given"), ADDED)
@pytest.mark.parametrize("start", ["Config(x=args.n)", "def go(a):\n  Config(x=a.n)\ngo(args)"])
def test_an_option_is_what_argparse_makes_of_it(tmp_path, monkeypatch, added, given, start):
    text = f"import argparse\np = argparse.ArgumentParser()\np.add_argument({added})\nargs = p.parse_args()\n{start}\n"
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    flags = flags_of(map(Text, given.split()), "there")
    flat = python_keys(path, CALLS, flags, words=given.split()).flat
    wanted, made = ADDED[added, given], []
    monkeypatch.setattr(sys, "argv", ["train.py", *given.split()])
    exec(text, {"Config": lambda **held: made.append(held["x"])})
    is_known = not flat["x"].gaps
    assert not is_known or flat["x"].value == made[0] == wanted
    assert is_known or wanted is None or start != "Config(x=args.n)"


FIX = "def fix(m):\n  m['x'] = 8\n"


@pytest.mark.parametrize(
    "text",
    [
        "n = 4\nif compute():\n  n *= 4\nConfig(x=n)",
        "d = {'n': 4}\nif compute():\n  d.update(n=16)\nConfig(x=d['n'])",
        FIX + "def run(c):\n  if compute():\n    fix(c)\n  Config(x=c['x'])\nrun({'x': 4})",
        FIX + "def run(c):\n  for each in compute():\n    fix(c)\n  Config(x=c['x'])\nrun({'x': 4})",
        FIX + "def run(c):\n  while compute():\n    fix(c)\n  Config(x=c['x'])\nrun({'x': 4})",
        FIX + "def run(c):\n  try:\n    compute()\n  except OSError:\n    fix(c)\n  Config(x=c['x'])\nrun({'x': 4})",
        FIX + "def more(m):\n  fix(m)\ndef run(c):\n  if compute():\n    more(m=c)\n  Config(x=c['x'])\nrun({'x': 4})",
        "def run(c):\n  if compute():\n    c['x'] = 8\ndef go(c):\n  run(c)\n  Config(x=c['x'])\ngo({'x': 4})",
        "def bump():\n  global n\n  n += 1\ndef run():\n  for each in compute():\n    bump()\n  Config(x=n)\nn = 4\nrun()",
        "class A:\n  def __init__(self, n):\n    self.n = n\ndef run(a):\n  if compute():\n    setattr(a, 'n', 8)\n  Config(x=a.n)\nrun(A(4))",
        "def run(c):\n  Config(x=1 if isinstance(c, tuple) else 2)\nrun([1, 2])",
        # What the text seems to say is another value where it is followed.
        "def run(l):\n  l.insert(0, 7)\n  Config(x=l[0])\nrun([1, 2])",
        "def run(d):\n  a = b = d\n  a.append(4)\n  Config(x=len(b))\nrun([1, 2])",
        "def run(d):\n  x = d.setdefault('z', [])\n  x.append(3)\n  Config(x=d['z'])\nrun({})",
        "def run(c):\n  for i in range(30):\n    c = [c, c]\n  Config(x=c)\nrun(1)",
        "def run(c):\n  for i in range(400):\n    for j in range(4):\n      c = [c]\n  Config(x=c)\nrun(1)",
    ],
)  # fmt: skip
def test_what_statements_may_change_that_are_not_followed_is_not_known(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    assert values(tmp_path, text) == {}


@pytest.mark.parametrize("unsure", ["if compute():", "for each in compute():"])
def test_a_mapping_that_may_have_more_keys_by_then_is_not_taken_whole(
    tmp_path, monkeypatch, unsure
):
    monkeypatch.chdir(tmp_path)
    text = f"def fix(m):\n  m['y'] = 8\ndef run(c):\n  {unsure}\n    fix(c)\n  Config(**c)\nrun(dict(x=4))"
    flat = keys(tmp_path, text).flat
    assert set(flat) == {"x", "**"}
    assert all(each.gaps for each in flat.values())


def test_what_is_given_before_what_is_unpacked_is_known(tmp_path):
    text = "def run(n, m=4):\n  Config(x=n, y=m)\nrun(1, **more)"
    assert values(tmp_path, text) == {"x": 1}


def test_no_module_or_file_beside_a_program_is_carried_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    marks = f"import os\nopen({str(tmp_path / 'done')!r}, 'w')\nfrom program import x\nSIZE = 3\n"
    (tmp_path / "beside.py").write_text(marks, encoding="utf-8")
    tag = f"a: 1\nb: !!python/object/apply:os.mkdir ['{tmp_path / 'done'}']\n"
    (tmp_path / "evil.yaml").write_text(tag, encoding="utf-8")
    text = "from beside import SIZE\nd = yaml.load(open('evil.yaml'))\nConfig(x=SIZE, y=d['a'])"
    assert values(tmp_path, text) == {"x": 3}
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("def f(n):\n  n = n * 2\n  return n\nConfig(x=f(4))", 8),
        ("def f(n):\n  n *= 2\n  return n\nConfig(x=f(4))", 8),
        ("def f(n):\n  if n > 8:\n    return 'much'\n  elif n in (4, 5):\n    return 'some'\n  return 'few'\nConfig(x=f(4))", "some"),
        ("def f(n):\n  log.info(n)\n  with held() as g:\n    size = n + 1\n  return size\nConfig(x=f(4))", 5),
        ("def f(n):\n  return n.strip().lower()\nConfig(x=f(' A '))", "a"),
        ("def f(n, **more):\n  Config(x=n)\nf(4, a=1)\nf(4, a=2)", 4),
        ("d = {'n': 4}\nd['n'] = 16\nConfig(x=d['n'])", 16),
        ("d = {'n': 4}\nd.update(n=16)\nConfig(x=d['n'])", 16),
        ("d = {'n': 4}\nConfig(x=d['n'])\nd['n'] = 16", 4),
        ("d = dict(n=4)\nd.setdefault('n', 8)\nConfig(x=d['n'])", 4),
        ("d = {**{'n': 3}, 'n': 4, 'm': compute()}\nConfig(x=d['n'])", 4),
        ("class A:\n  n = 4\nConfig(x=A.n)", 4),
        ("@dataclass\nclass A:\n  n: int = field(default=4)\na = A()\nConfig(x=a.n)", 4),
        ("@dataclass\nclass A:\n  n: int = 4\na = A(n=8)\nConfig(x=a.n)", 8),
        ("class A:\n  def __init__(self, n=4):\n    self.n = n * 2\na = A(3)\nConfig(x=a.n)", 6),
        ("class A:\n  def __init__(self):\n    self.n = 4\n  def run(self):\n    Config(x=self.n)\nA().run()", 4),
        ("a = Settings(n=4)\nConfig(x=a.n)", 4),
        ("Config(x=getattr(args, 'n', 4))", 4),
        ("parser.add_argument('--n', default=8)\nConfig(x=getattr(args, 'n', 4))", 8),
        ("parser.add_argument('--number', dest='n', default=8)\nConfig(x=args.n)", 8),
        ("parser.add_argument('--n', action='store_false')\nConfig(x=args.n)", True),
        ("@app.command()\ndef main(n: int = typer.Option(4)):\n  Config(x=n)", 4),
        ("@click.command()\n@click.option('--n', default=4)\ndef main(n):\n  Config(x=n)", 4),
        ("def main(n=4):\n  Config(x=n)\nfire.Fire(main)", 4),
        ("n, m = 4, 8\nConfig(x=m)", 8),
        ("Config(x=[1, 2, 3][1:][0])", 2),
        ("n = 8\ndef a():\n  n = 4\n  Config(x=n)", 4),
    ],
)  # fmt: skip
def test_what_statements_make_of_constants_is_known(tmp_path, text, held):
    assert values(tmp_path, text) == {"x": held}


def test_what_a_mapping_lacks_leaves_the_rest_known(tmp_path):
    text = "d = {'a': 1}\nif compute():\n  d['b'] = 2\nd['c'] = other()\nConfig(**d)"
    found = keys(tmp_path, text).flat
    assert {key: each.value for key, each in found.items() if not each.gaps} == {"a": 1}
    reasons = {key: each.gaps[0].reason for key, each in found.items() if each.gaps}
    assert reasons == {
        "b": "depends on what is known where it runs",
        "c": "is what a call returns",
    }


def test_defaults_that_nothing_gives_are_named_beside_the_value(tmp_path):
    text = """
parser.add_argument("--size", default=4)
Config(x=args.size * 2, y=os.environ.get("LENGTH", 64), z=3)
"""
    found = keys(tmp_path, text).flat
    assert {key: each.taken for key, each in found.items()} == {
        "x": ("--size 4",), "y": ("LENGTH 64",), "z": (),
    }  # fmt: skip
    assert keys(tmp_path, text, size=8).flat["x"].taken == ()
    path = tmp_path / "train.py"
    given = python_keys(path, CALLS, {}, environment={"LENGTH": "128"}).flat["y"]
    assert (given.value, given.taken) == ("128", ())


def test_words_of_the_command_line_are_the_program_s_arguments(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("Config(x=sys.argv[1] if len(sys.argv) > 1 else 'none')", encoding="utf-8")
    assert python_keys(path, CALLS, {}).flat["x"].value == "none"
    assert python_keys(path, CALLS, {}, words=["big", "--n"]).flat["x"].value == "big"
    unread = Unknown("is given where it runs", "$BIG")
    assert python_keys(path, CALLS, {}, words=[unread]).flat["x"].gaps


def test_a_file_that_hydra_composes_is_the_function_s_argument(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "train.yaml").write_text("a: {n: 4, m: '${b}'}\n", encoding="utf-8")
    path = tmp_path / "train.py"
    path.write_text(
        "@hydra.main(config_path='conf', config_name='train')\n"
        "def main(cfg):\n  Config(x=cfg.a.n, y=cfg.a.m)\n",
        encoding="utf-8",
    )
    found = python_keys(path, CALLS, {}).flat
    assert (found["x"].value, found["y"].gaps[0].reason) == (4, "is composed where it runs")
    assert python_keys(path, CALLS, {}, words=["a.n=8"]).flat["x"].value == 8
    (tmp_path / "conf" / "train.yaml").write_text("defaults: [other]\na: {n: 4}", encoding="utf-8")
    assert python_keys(path, CALLS, {}).flat["x"].gaps


NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["Config(x=1)"]},
        {"cell_type": "code", "source": ["!pip install trl\n", "n = 4"]},
        {"cell_type": "code", "source": "%%bash\nConfig(x=2)"},
        {"cell_type": "code", "source": ["%%capture\n", "out = !ls\n", "Config(x=n,\n  y=f())"]},
        {"cell_type": "code", "source": ["this is no Python"]},
    ]
}


def test_a_notebook_is_read_as_the_program_that_its_cells_are(tmp_path):
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps(NOTEBOOK), encoding="utf-8")
    found = python_keys(path, CALLS, {}).flat
    assert (found["x"].value, found["x"].where) == (4, f"{path}: cell 4")
    assert str(found["y"].gaps[0]) == "line 4: f(): is what a call returns"
    assert has_call(path, ("Config",))
    assert commands_of_notebook(path.read_text(encoding="utf-8")) == (
        "pip install trl\nConfig(x=2)\n"
    )
    path.write_text("[]", encoding="utf-8")
    assert not has_call(path, ("Config",))


def test_of_several_settings_those_of_the_last_training_count(tmp_path):
    text = "a = Config(x=1, y=1)\nb = Config(x=2)\nTrainer('m', args=a)"
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    found = python_keys(path, CALLS, {}, starts=("Config", "Trainer"))
    known = {key: each.value for key, each in found.flat.items() if not each.gaps}
    assert known == {"x": 1, "y": 1, "trainer.model": "m"}
    assert found.notes == (f"the program has 2 settings, of which these are those of {path}:1",)


OWN = "class Mine({base}):\n  def __init__(self, args=Config()):\n    pass\n"


@pytest.mark.parametrize(("base", "extends"), [("Trainer", True), ("torch.Module", False)])
def test_a_trainer_of_one_s_own_is_told_from_a_copy(tmp_path, base, extends):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("from .own import Mine\n", encoding="utf-8")
    (tmp_path / "mine" / "own.py").write_text(OWN.format(base=base), encoding="utf-8")
    path = tmp_path / "train.py"
    path.write_text(
        "from mine import Mine\ncls = Mine if x else Mine\ncls(model='m')\n", encoding="utf-8"
    )
    calls = {**CALLS, "Mine": CALLS["Trainer"]}
    found = python_keys(path, calls, {}, starts=("Config", "Trainer", "Mine"))
    assert found.own is not None
    assert (found.own.name, found.own.path.name, found.own.extends) == ("Mine", "own.py", extends)
    assert found.flat["trainer.model"].value == "m"
    assert not has_call(tmp_path / "mine" / "own.py", ("Config", "Mine"))


@pytest.mark.parametrize(
    "change",
    ["args.x = 16", "setattr(args, 'x', 16)", "args = dataclasses.replace(args, x=16, y=2)"],
)
def test_what_is_changed_of_settings_after_they_are_made_counts(tmp_path, change):
    found = values(tmp_path, f"args = Config(x=4, z=1)\n{change}\nTrainer('m', args=args)\n")
    assert (found["x"], found["z"]) == (16, 1)
    others = values(tmp_path, "args = Config(x=4)\nsetattr(args, name(), 16)\nTrainer(args=args)")
    assert others["x"] == 4


def test_classes_that_are_made_of_each_other_are_no_circle(tmp_path):
    text = "class A(B):\n    y = 1\nclass B(A):\n    pass\nargs = Config(x=A.x, y=B.y)\n"
    found = keys(tmp_path, text).flat
    assert (found["x"].gaps[0].reason, found["y"].value) == ("is known where it runs", 1)


# Programs that change what they have set by another name, each with what `x` is then; None is not known.
CHANGED_BY_ANOTHER_NAME = {
    "c = dict(x=4)\nd = c\nd['x'] = 8\nConfig(**c)": 8,
    "c = dict(x=4)\nd = c\nc.update(x=8)\nConfig(**d)": 8,
    "c = dict(x=4)\nc |= {'x': 8}\nConfig(**c)": 8,
    "c = dict(x=4)\nc.x = 8\nConfig(x=c.x)": 8,
    "c = dict(x=4)\nd = c\nConfig(**c)\nd['x'] = 8": 4,
    "c = dict(x=4)\ndef f():\n    c = dict(x=1)\n    c['x'] = 8\nConfig(**c)": 4,
    "c = dict(x=4)\nd = c.copy()\nd['x'] = 8\nConfig(**c)": 4,
    "c = {'t': dict(x=4)}\nt = c['t']\nc['u'] = 8\nConfig(**t)": 4,
    "c = {'t': dict(x=4)}\nt = c['t']\nt['x'] = 8\nConfig(**c['t'])": 8,
    "c = {'t': dict(x=4)}\nt = c['t']\nc['t']['x'] = 8\nConfig(**t)": 8,
    "c = [4]\nd = c\nd[0] = 8\nConfig(x=c[0])": 8,
    "c = dict(x=4)\nc.__setitem__('x', 8)\nConfig(**c)": 8,
    "def f(m):\n    m['x'] = 8\nc = dict(x=4)\nf(c)\nConfig(**c)": 8,
    "def g(n):\n    n.pop('x')\ndef f(m):\n    g(m)\nc = dict(x=4)\nf(c)\nConfig(**c)": None,
    "def f(m):\n    return m['x']\nc = dict(x=4)\nf(c)\nConfig(**c)": 4,
    "n = 4\ndef f():\n    global n\n    n = 8\nf()\nConfig(x=n)": 8,
    "class C:\n    n = 4\nC.n = 8\nConfig(x=C.n)": None,
    "args.__dict__.update(n=8)\nConfig(x=args.n)": 8,
    "args.__dict__.update({'n': 8})\nConfig(x=args.n)": 8,
    "args.__dict__.update(read())\nConfig(x=args.n)": None,
    "vars(args)['n'] = 8\nConfig(x=args.n)": 8,
    "d = vars(args)\nd['n'] = 8\nConfig(x=args.n)": None,
    "for k, v in read():\n    setattr(args, k, v)\nConfig(x=args.n)": None,
    "o = args\no.n = 8\nConfig(x=args.n)": 8,
    "def f(o):\n    o.n = 8\nf(args)\nConfig(x=args.n)": 8,
    "def f(o, k):\n    o.n = k\nf(args, 8)\nConfig(x=args.n)": None,
    "c = Config(x=4)\nd = c\nd.x = 8": 8,
    "c = Config(x=4)\nc.__dict__.update(x=8)": 8,
    "def f(o):\n    o.x = 8\nc = Config(x=4)\nf(c)": 8,
    "c = Config(x=4)\nif False:\n    c.x = 8": 4,
    "c = Config(x=4)\nif asked():\n    c.x = 8": None,
    "c = Config(x=4)\nif asked():\n    c.x = 4": 4,
}


@pytest.mark.parametrize("text", CHANGED_BY_ANOTHER_NAME)
def test_what_is_changed_by_another_name_is_followed_or_not_known(tmp_path, text):
    options = "parser.add_argument('--n', default=4)\nargs = parser.parse_args()\n"
    assert values(tmp_path, options + text).get("x") == CHANGED_BY_ANOTHER_NAME[text]


def test_names_that_lead_back_to_each_other_pass_on_each_change_once(tmp_path):
    path = tmp_path / "train.py"
    loops = "".join(f"a = b.x{number}\nb = a.y{number}\n" for number in range(6))
    path.write_text(f"{loops}a['k']['m'] = 1\nb['k']['m'] = 2\n", encoding="utf-8")
    program = Program(path=path, calls={}, arguments={}, tree=tree_of(path))
    program.collect()
    # two changes, and the two that stand for them in the whole and in the part
    assert {name: len(changes) for (_, name), changes in program.changes.items()} == {
        "a": 3,
        "b": 3,
    }


def test_what_a_module_beside_a_program_changes_is_followed_or_not_known(tmp_path):
    (tmp_path / "fixing.py").write_text(
        "def fix(m):\n    m['x'] = 8\ndef show(m):\n    print(m['x'])\ndef spell(o):\n    o.n = 8\n",
        encoding="utf-8",
    )
    start = "from fixing import fix, show, spell\nc = dict(x=4)\n"
    assert values(tmp_path, start + "show(c)\nConfig(**c)") == {"x": 4}
    assert values(tmp_path, start + "fix(c)\nConfig(**c)") == {"x": 8}
    options = "parser.add_argument('--n', default=4)\nargs = parser.parse_args()\n"
    assert not values(tmp_path, f"{start}{options}spell(args)\nConfig(x=args.n)")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("n = 4\nexec(open('more.py').read())\nConfig(x=n)", "exec("),
        ("n = 4\nglobals()['n'] = 8\nConfig(x=n)", "globals()['n']"),
        ("c = Config(x=4)\nd = replace(c, x=8)\nTrainer(args=d)", "replace(c, x=8)"),
        ("c = Config(x=4)\nfor k, v in read():\n    setattr(c, k, v)", "setattr(c, k, v)"),
    ],
)
def test_what_may_set_anything_is_said(tmp_path, text, named):
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    found = python_keys(path, CALLS, {}, starts=("Config", "Trainer"))
    assert any(named in each for each in (*found.notes, *found.flat))
