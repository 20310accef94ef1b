"""Questions of arithmetic that a small pre-trained model answers now and then, and some held out of training.

    python benchmarks/arithmetic.py build/arithmetic

Writes `train.jsonl` and `held_out.jsonl`: rows with a chat as `prompt` and the number as `answer`. Every sum of two
numbers from `LOW` to `HIGH` is in one of the files and in one only, `b + a` beside `a + b`: no answer can be learnt
from the other file. `number` is the rule that judges: the response's last number is the answer.

SmolLM2-135M-Instruct, its matrices quantised to four bits, answers 28 of the 56 held-out questions rightly where
`transformers` generates greedily (fp32, at most 16 tokens: 9.6 in the mean; prompts have up to 47), 16 % of samples at
temperature 1 (14.1 tokens) and 38 % at 0.5 (11.3). Within 8 tokens it is 23 %: its sentences are cut off there.
"""

import argparse
import json
import random
import re
from pathlib import Path
from typing import Any

LOW, HIGH = 2, 15
HELD_OUT_PAIRS = 30
SEED = 0
QUESTION = "What is {first} + {second}? Reply with the number only."
NUMBER = re.compile(r"-?\d+")

Row = dict[str, Any]


def questions(seed: int = SEED) -> tuple[list[Row], list[Row]]:
    """Return the questions to train on and those that are held out, the same for the same seed."""
    pairs = [(first, second) for first in range(LOW, HIGH + 1) for second in range(first, HIGH + 1)]
    random.Random(seed).shuffle(pairs)
    return _rows(pairs[HELD_OUT_PAIRS:]), _rows(pairs[:HELD_OUT_PAIRS])


def _rows(pairs: list[tuple[int, int]]) -> list[Row]:
    both = ({(first, second), (second, first)} for first, second in pairs)
    return [_row(*ordered) for two in both for ordered in sorted(two)]


def _row(first: int, second: int) -> Row:
    text = QUESTION.format(first=first, second=second)
    return {"prompt": [{"role": "user", "content": text}], "answer": str(first + second)}


def number(prompt: str, response: str, row: Row) -> float:  # noqa: ARG001  # as rules are called
    """Return 1 where the last number of a response is the answer, else 0."""
    found = NUMBER.findall(response)
    return float(bool(found) and found[-1] == row["answer"])


def write_questions(folder: Path, seed: int = SEED) -> tuple[Path, Path]:
    """Write both files into a folder, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.jsonl", folder / "held_out.jsonl"
    for path, rows in zip(paths, questions(seed), strict=True):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return paths


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    for path in write_questions(given.folder, given.seed):
        print(path)


if __name__ == "__main__":
    main()
