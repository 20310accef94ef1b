"""Compare the executor's throughput with TRL's on SmolLM2-135M-Instruct: same weights, prompts, batch and cores.

    make bench-trl                              sets TRL up, once
    python benchmarks/real_model_vs_trl.py      pairs of turns of two iterations, GRPO: about ten minutes

As `executor_vs_trl.py` does it: both are warmed up, then turns alternate. The questions are those of `real_model.py`,
written out by the model's own chat template; no response ends before its sixteenth token: here the end token
is one that the model does not say, there `min_new_tokens` forbids it. What is found goes into `real-model-trl.json`, which the page of
`real_model.py` shows.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from arithmetic import questions
from executor_page import cores_in_use
from executor_vs_trl import TRL_VENV, in_turns, multiplying_rate, shown_layout
from transformers import AutoTokenizer

from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_json
from rlplan.job import Hyperparameters, Job, NodeGroup, Rewards
from rlplan.plan import Plan
from rlplan.planner.search import search
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.workload import Workload

ROOT = Path(__file__).parents[1]
PROMPTS, SAMPLES, RESPONSE_TOKENS = 16, 8, 16
KL_COEFFICIENT, LEARNING_RATE = 0.001, 1e-6
# Parts in which TRL passes over a batch: as one, its logits alone take more memory than 24 GiB have beside ours.
PASSES = 4
NO_END = "<empty_output>"  # a token of the vocabulary that the model does not say


def main() -> None:
    """Compare, and write down what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=ROOT / "build" / "smollm2")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--turn", type=int, default=2, help="iterations of a side in a pair")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--trl-python", type=Path, default=TRL_VENV / "bin" / "python")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "published")
    options = parser.parse_args()
    found = compared(options, cores_in_use())
    write_json(options.out / "real-model-trl.json", found)
    ratio = statistics.median(pair["ratio"] for pair in found["pairs"])
    print(f"{ratio:.2f} times TRL {found['versions']['trl']}", flush=True)


def compared(options: argparse.Namespace, load: float) -> dict[str, Any]:
    """Run both sides in turns and return what they took."""
    with tempfile.TemporaryDirectory(prefix="rlplan-trl-") as name:
        folder, model = Path(name), options.model.resolve()
        texts = written_prompts(folder, model)
        plan = planned(folder, model, options.cores)
        rate = multiplying_rate(options.cores)
        setting = setting_of(model, texts, options.cores)
        versions, pairs = in_turns(plan, setting, folder, options, RESPONSE_TOKENS)
        return {
            "versions": versions,
            "cores": options.cores,
            "layout": shown_layout(plan),
            "tokens": PROMPTS * SAMPLES * RESPONSE_TOKENS,
            "turn": options.turn,
            "load": load,
            "flops_per_second": rate,
            "pairs": pairs,
        }


def written_prompts(folder: Path, model: Path) -> list[str]:
    """Write the questions as the model's template has them, and a tokenizer without an end; return the texts."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    rows, _ = questions()
    texts = [
        tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        for row in rows
    ]
    widths = [len(tokenizer(text)["input_ids"]) for text in texts]
    usual = max(set(widths), key=widths.count)  # of one length, so that neither side pads
    kept = [text for text, width in zip(texts, widths, strict=True) if width == usual]
    lines = [json.dumps({"prompt": text}) + "\n" for text in kept]
    (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    tokenizer.add_special_tokens({"eos_token": NO_END})
    tokenizer.save_pretrained(folder / "tokenizer")
    return kept


def planned(folder: Path, model: Path, cores: int) -> Plan:
    """Return the plan that the search chooses for the compared job."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    first = json.loads((folder / "prompts.jsonl").read_text().splitlines()[0])["prompt"]
    job = Job(
        name="trl-real-model",
        algorithm="grpo",
        models=FrozenDict({"actor": str(model), "reference": str(model)}),
        workload=Workload(
            prompts=PROMPTS,
            samples_per_prompt=SAMPLES,
            prompt_tokens=len(tokenizer(first)["input_ids"]),
            response_tokens=RESPONSE_TOKENS,
        ),
        cluster=(NodeGroup(gpu="cpu", gpus_per_node=cores),),
        rewards=Rewards(function="digits", function_seconds_per_sample=1e-5),
        hyperparameters=Hyperparameters(learning_rate=LEARNING_RATE, kl_coefficient=KL_COEFFICIENT),
        prompts_file="prompts.jsonl",
        tokenizer=str(folder / "tokenizer"),
    )
    job = resolve_job(job, folder)
    return search(job, load_facts(job)).plans[0].plan


def setting_of(model: Path, texts: list[str], cores: int) -> dict[str, Any]:
    """Return the job in the words of `trl_side.py`."""
    return {
        "algorithm": "grpo",
        "prompts": PROMPTS,
        "samples_per_prompt": SAMPLES,
        "response_tokens": RESPONSE_TOKENS,
        "epochs": 1,
        "kl_coefficient": KL_COEFFICIENT,
        "learning_rate": LEARNING_RATE,
        "texts": texts,
        "tokenizer": str(model),
        "threads": cores,
        "max_iterations": 10**6,
        "folder": str(model),
        "passes": PASSES,
    }


if __name__ == "__main__":
    main()
