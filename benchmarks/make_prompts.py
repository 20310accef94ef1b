"""Make `digits.jsonl`: short prompts for the small task, all of one length.

    python benchmarks/make_prompts.py

Each prompt is 15 ASCII characters, so 16 tokens of the byte-level tokenizer with its first one.
`payload` is what the rule `copy` wants repeated; the rule `digits` needs no more than the prompt.
"""

import json
import string
from pathlib import Path

import numpy as np

NUM_PROMPTS = 256
PAYLOAD_LETTERS = 4
SEED = 20240527
FOLDER = Path(__file__).parents[1] / "rlplan_cli" / "demo_job"


def lines_of(num_prompts: int, seed: int) -> list[str]:
    """Return the file's lines, the same ones for the same seed."""
    generator = np.random.default_rng(seed)
    letters = np.array(list(string.ascii_lowercase))
    payloads: dict[str, None] = {}
    while len(payloads) < num_prompts:
        payloads["".join(generator.choice(letters, size=PAYLOAD_LETTERS))] = None
    rows = ({"prompt": f"number of {word}:", "payload": word} for word in payloads)
    return [json.dumps(row) + "\n" for row in rows]


def main() -> None:
    """Write the file into the demo's folder."""
    text = "".join(lines_of(NUM_PROMPTS, SEED))
    (FOLDER / "digits.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
