"""Mutations that keep a file's structure, and some that do not: of trees, tables, scripts and bytes."""

import csv
import io
import json
import random
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

NUMBERS = (
    0, -1, 1, 2, 3, 7, 8, 1000, 65_537, 10**6, 10**7, 2**31, 2**53, 2**63, 10**18, 10**30, 10**400,
    -0.0, 0.5, 1e-9, 1e-308, 1e9, 1e30, 1e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
# What might well be meant: it is refused less often, and goes deeper.
USUAL = (1, 2, 3, 4, 6, 8, 16, 64, 128, 1024, 0.5, 0.9)
TEXTS = (
    "", " ", "~", "null", "true", "1e3", "0x10", "1_000", "-", "/", ".", "..", "/dev/zero", "/dev/stdin",
    "../../../etc/passwd", "job.yaml", "run", "caf\u00e9 \u4f60\u597d \U0001f600", "\x1b[31mred", "a\x00b", "\ud800",
    "a\nb", "%s {0} {x!r} $HOME `id` $(id)", "[bold]x[/bold]", "<script>x</script>", "x" * 5000, "9" * 400,
    "a.b.c", "actor.update", "'", '"', "\u202e", "{}", "[]", "a,b", "=1", "NaN", "inf", "1e400", "0.1.2",
)  # fmt: skip
OTHERS = (None, True, False, [], {}, [[]], [None], {"": None}, {"a": 1}, [1, "a", None])


@dataclass(frozen=True)
class Words:
    """Hold what is known to be read somewhere: keys, and the values that stand under them."""

    values: dict[str, list] = field(default_factory=dict)

    def learn(self, tree):
        """Take every key of a tree with its value."""
        for path in paths(tree):
            if path and isinstance(path[-1], str):
                self.values.setdefault(path[-1], []).append(at(tree, path))

    def learn_schema(self, schema):
        """Take every key of a JSON Schema with the values that it names."""
        for each in (schema, *schema.get("$defs", {}).values()):
            for key, about in each.get("properties", {}).items():
                kinds = [about, *about.get("anyOf", ())]
                named = [v for kind in kinds for v in (*kind.get("enum", ()), kind.get("const"))]
                self.values.setdefault(key, []).extend([v for v in named if v is not None])


def paths(tree, so_far=()):
    """Yield the keys that lead to every value of a tree, the tree itself first."""
    yield so_far
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from paths(value, (*so_far, key))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from paths(value, (*so_far, index))


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def mutated_tree(tree, dice, words):
    """Return a tree with one to three changes."""
    tree = json.loads(json.dumps(tree, default=str))
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        every = [path for path in paths(tree) if path]
        if not every:
            return odd_value(None, dice, words)
        path = dice.choice(every)
        change = dice.choice(
            (_replace, _replace, _replace, _remove, _rename, _add, _add, _move, _shape)
        )
        change(tree, path, dice, words)
    return tree


def odd_value(value: Any, dice, words) -> Any:
    """Return what might be written in place of a value, more often of its own kind than not."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and dice.random() < 0.8:
        near = (
            value + 1,
            value - 1,
            value * 2,
            value // 2,
            value * 1000,
            -value,
            value / 3,
            str(value),
        )
        return dice.choice(dice.choice((NUMBERS, near, USUAL)))
    known = [each for values in words.values.values() for each in values]
    if isinstance(value, str) and dice.random() < 0.7:
        like = (value + "x", value[:-1], value.upper(), value * 2, [value], {"name": value})
        names = [each for each in known if isinstance(each, str)] or [""]
        return dice.choice((dice.choice(TEXTS), dice.choice(like), dice.choice(names)))
    pools = [NUMBERS, TEXTS, OTHERS, known or OTHERS]
    return dice.choice(dice.choice(pools))


def _replace(tree, path, dice, words):
    value = at(tree, path)
    own = words.values.get(str(path[-1])) if dice.random() < 0.45 else None
    at(tree, path[:-1])[path[-1]] = dice.choice(own) if own else odd_value(value, dice, words)


def _remove(tree, path, dice, words):
    del at(tree, path[:-1])[path[-1]]


def _rename(tree, path, dice, words):
    holder = at(tree, path[:-1])
    if isinstance(holder, list):
        return _replace(tree, path, dice, words)
    key = str(path[-1])
    names = (
        key + "s",
        key[:-1],
        key.upper(),
        dice.choice(TEXTS),
        dice.choice(sorted(words.values) or [""]),
    )
    holder[dice.choice(names)] = holder.pop(path[-1])
    return None


def _add(tree, path, dice, words):
    mappings = [each for each in paths(tree) if isinstance(at(tree, each), dict)]
    if not mappings or not words.values:
        return
    key = dice.choice(sorted(words.values))
    known = words.values[key]
    value = dice.choice(known) if known and dice.random() < 0.6 else odd_value(1, dice, words)
    at(tree, dice.choice(mappings))[key] = value


def _move(tree, path, dice, words):
    every = [each for each in paths(tree) if each]
    taken = json.loads(json.dumps(at(tree, dice.choice(every))))
    at(tree, path[:-1])[path[-1]] = taken


def _shape(tree, path, dice, words):
    holder, value = at(tree, path[:-1]), at(tree, path)
    deep = value
    for _ in range(100):
        deep = [deep]
    shapes = [[value], {"0": value}, deep, [value] * 1000]
    if isinstance(value, list):
        shapes += [value[:-1], value[::-1], value * 2, [], value * 300]
    if isinstance(value, dict):
        shapes += [list(value), list(value.items()), dict.fromkeys(value), {}]
    holder[path[-1]] = dice.choice(shapes)


def mutated_table(text, dice, words):
    """Return a table (CSV) with one to three changes of cells, rows or columns."""
    rows = list(csv.reader(io.StringIO(text)))
    for _ in range(dice.choice((1, 1, 2, 3))):
        if not rows or not rows[0]:
            return ""
        row, column = dice.randrange(len(rows)), dice.randrange(len(rows[0]))
        what = dice.randrange(9)
        if what < 4 and column < len(rows[row]):
            cell = rows[row][column]
            value = float(cell) if re.fullmatch(r"-?\d+(\.\d+)?", cell) else cell
            others = [each[column] for each in rows if column < len(each)]
            rows[row][column] = dice.choice(
                (str(odd_value(value, dice, words)), dice.choice(others))
            )
        elif what == 4:
            rows = [each[:column] + each[column + 1 :] for each in rows]
        elif what == 5:
            del rows[row]
        elif what == 6:
            rows[row] = dice.choice((rows[row] * 2, rows[row][:1], [], [""] * len(rows[row])))
        elif what == 7:
            rows.insert(dice.randrange(len(rows) + 1), list(rows[row]))
        else:
            rows = [[*each, each[column] if column < len(each) else ""] for each in rows]
    out = io.StringIO()
    csv.writer(out, delimiter=dice.choice(",,,,,,;\t")).writerows(rows)
    return out.getvalue()


def mutated_text(text, dice, words):
    """Return a text whose numbers, names or lines were changed."""
    for _ in range(dice.choice((1, 1, 2, 3))):
        spans = [
            m.span() for m in re.finditer(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|[A-Za-z_][\w./-]*", text)
        ]
        what = dice.randrange(6)
        if what < 3 and spans:
            start, end = dice.choice(spans)
            old = text[start:end]
            value = float(old) if re.fullmatch(r"-?\d+(\.\d+)?", old) else old
            text = text[:start] + str(odd_value(value, dice, words)) + text[end:]
            continue
        lines = text.split("\n")
        line = dice.randrange(len(lines))
        if what == 3:
            lines.insert(dice.randrange(len(lines)), lines[line])
        elif what == 4:
            del lines[line]
        else:
            lines[line] = dice.choice(
                (lines[line][: len(lines[line]) // 2], lines[line] * 3, dice.choice(SHELL))
            )
        text = "\n".join(lines)
    return text


SHELL = (
    "while true; do :; done", 'for i in $(seq 1 1000000); do A="$A$A"; done', "exit 3", "set -euo pipefail",
    "f() { f; }; f", "cat <<EOF", 'X="unclosed', "X=${Y:?no}", "X=$((1/0))", "X=$((2**99999))", "export A=$A$A", ")",
    "if [ $A = 1 ]; then", "A=(1 2 3)", "echo ${A[@]", "source other.sh", "eval $A", "X=`", "case x in", "\\",
    "A=$(cat /dev/zero)", "X=${X:-${X}}", "for ((i=0;i<10**9;i++)); do :; done", "{1..100000000}", "!!", "\x00",
)  # fmt: skip


def mutated_bytes(content, dice):
    """Return bytes that were flipped, cut, doubled, overwritten or re-encoded."""
    place = dice.randrange(len(content) + 1)
    head, tail = content[:place], content[place:]
    flipped = bytes([tail[0] ^ 1 << dice.randrange(8)]) + tail[1:] if tail else b""
    odd = (
        b"\x00" * 64,
        b"&a [*a, *a]",
        b"\n<<: *a\n",
        b"!!python/object/apply:os.system [id]",
        b"\xff\xfe",
        b"\t",
    )
    return dice.choice(
        (
            head,
            head + flipped,
            head + dice.randbytes(dice.choice((1, 4, 100))) + tail,
            head + tail[dice.choice((1, 10, 1000)) :],
            head + tail[:50] * 20 + tail,
            b"\xef\xbb\xbf" + content,
            content.decode(errors="replace").encode("utf-16"),
            content.replace(b"\n", b"\r\n"),
            head + dice.choice((*odd, BOMB)) + tail,
        )
    )


# Nine levels of nine references each: a billion values where they are written out.
BOMB = b"\nbomb: [" + b"".join(
    b"&b%d [%s]," % (level, b",".join([b"*b%d" % (level - 1) if level else b"1"] * 9)) for level in range(9)
) + b"*b8]\n"  # fmt: skip


def mutated(content, kind, dice, words):
    """Return the content of a file, mutated as its kind (`tree`, `table`, `text`, `bytes`) asks for."""
    if kind == "bytes" or dice.random() < 0.15:
        return mutated_bytes(content, dice)
    text = content.decode()
    if kind == "table":
        text = mutated_table(text, dice, words)
    elif kind == "lines":
        lines = text.splitlines()
        place = dice.randrange(len(lines))
        lines[place] = written(mutated_tree(json.loads(lines[place]), dice, words), "json")
        text = "\n".join(lines) + "\n"
    elif kind in {"json", "yaml"}:
        read = json.loads if kind == "json" else yaml.safe_load
        text = written(mutated_tree(read(text), dice, words), kind)
    else:
        text = mutated_text(text, dice, words)
    return text.encode(errors="surrogatepass")


def written(tree, kind):
    """Return a tree as JSON or YAML."""
    try:
        if kind != "json":
            return yaml.dump(tree, Dumper=yaml.CSafeDumper, sort_keys=False)
    except (UnicodeEncodeError, RecursionError):
        pass  # JSON, which is YAML as well, writes half a character as an escape, and nests deeper
    return json.dumps(tree)


def dice_of(seed, number):
    """Return the random numbers of one case: the same for the same seed and number, anywhere."""
    return random.Random(f"{seed}/{number}")
