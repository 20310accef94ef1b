"""Train a real pre-trained model with GRPO beside its forecast, with full weights and with adapters.

    make real-model               the folder, then this with all that follows, into reports/published
    python -m benchmarks.real_model [--seeds 0] [--ways full adapters] [--iterations 16] [--work build/real-model]
    python -m benchmarks.real_model --seeds --more-seeds 1 2    further seeds of half as many iterations, for what they learn alone

What was found before, of other seeds, stays in the page. Of further seeds no times are compared: other work may run beside them.

The model is SmolLM2-135M-Instruct (`benchmarks/smollm.py`), the task sums of two numbers of which some are held out
(`benchmarks/arithmetic.py`). The machine is profiled for the job, the plan searched, and each run carried out as any
user's. What a run has learnt is judged by others: `transformers` (with `peft`, where adapters were trained) answers the
held-out questions greedily out of the exported folder.
"""

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arithmetic import number, write_questions
from benchmarks.smollm import OUT, PACKAGES, write_folder
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.control.run import Saving
from rlplan.executor.execute import execute
from rlplan.files.writing import write_json, write_text, write_yaml
from rlplan.plan import Plan
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import Facts, load_facts
from rlplan.reports.pictures.curves import plot_learning
from rlplan.simulator.simulate import simulate
from rlplan.units import show_seconds
from rlplan_cli.measuring import measure_machine
from rlplan_cli.running import compare_run

WORK = Path(__file__).parents[1] / "build" / "real-model"
RULE = Path(__file__).with_name("arithmetic.py")
WAYS = ("full", "adapters")
RATES = {"full": 1e-5, "adapters": 3e-4}
ADAPTERS = {"actor": {"rank": 16, "sync": "merged"}}
WARMUP, NEW_TOKENS = 2, 16
BESIDE_OTHERS = 1.5
RULE_SECONDS = 1e-5  # a regular expression on sixteen tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Hold a way to train, ready to run."""

    way: str
    plan: Plan
    facts: Facts
    folder: Path


def main() -> None:
    """Make what is needed, run all ways and seeds, and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--more-seeds", type=int, nargs="*", default=[])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--iterations", type=int, default=16)
    parser.add_argument("--model", type=Path, default=OUT)
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--out", type=Path, default=Path("reports/published"))
    given = parser.parse_args()
    if not (given.model / "config.json").is_file():
        write_folder(given.model, PACKAGES)
    _, held_out = write_questions(given.work)
    rows = [json.loads(line) for line in held_out.read_text(encoding="utf-8").splitlines()]
    shorter = max(given.iterations // 2, WARMUP + 1)
    asked = [(seed, given.iterations, True) for seed in given.seeds]
    asked += [(seed, shorter, False) for seed in given.more_seeds]
    found = earlier(given.out, [(way, seed) for seed, _, _ in asked for way in given.ways])
    found["start"] = greedy_accuracy(given.model, given.model, rows)
    plans = [planned_way(way, given.model.resolve(), given.work) for way in given.ways]
    for seed, iterations, is_timed in asked:
        for planned in plans:
            run = run_one(planned, seed, iterations, rows)
            found["runs"].append(run | {"timed": is_timed})
            found["runs"].sort(key=lambda each: (WAYS.index(each["way"]), each["seed"]))
            publish(found, given.out)


def earlier(out: Path, again: list[tuple[str, int]]) -> dict[str, Any]:
    """Return what was published before, without the runs of ways and seeds that run again."""
    file = out / "real-model.json"
    runs = json.loads(file.read_text(encoding="utf-8"))["runs"] if file.exists() else []
    return {"runs": [run for run in runs if (run["way"], run["seed"]) not in again]}


def planned_way(way: str, model: Path, work: Path) -> Planned:
    """Write a way's job, profile this machine for it, and return the best plan."""
    job: dict[str, Any] = {
        "version": 1,
        "name": f"sums-{way}",
        "algorithm": "grpo",
        "models": {"actor": str(model), "reference": str(model)},
        "tokenizer": str(model),
        "workload": {
            "prompts": 16,
            "samples_per_prompt": 8,
            "prompt_tokens": {"distribution": "uniform", "low": 45, "high": 47},
            "response_tokens": {"distribution": "uniform", "low": 4, "high": NEW_TOKENS},
        },
        "rewards": {"function": f"{RULE}:number", "function_seconds_per_sample": RULE_SECONDS},
        "hyperparameters": {"learning_rate": RATES[way], "kl_coefficient": 0.001},
        "prompts_file": "train.jsonl",
        "cluster": [{"gpu": "cpu", "gpus_per_node": 2}],
    }
    if way == "adapters":
        job |= {"adapters": ADAPTERS, "models": {"actor": str(model)}}
    file = work / f"{way}.job.yaml"
    write_yaml(file, job)
    loaded, profile = load_job(file), work / "profile"
    # No pass with adapters is measured: whole models' serve both ways.
    if way == "full" or not profile.exists():
        measure_machine(profile, job=loaded, folder=work, device="cpu", devices=2, quick=True)
    facts = load_facts(loaded, profile)
    return Planned(way=way, plan=search(loaded, facts).plans[0].plan, facts=facts, folder=work)


def run_one(
    planned: Planned, seed: int, iterations: int, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Run a plan, and return its curve, its accuracy on held-out questions, and forecast beside measurement."""
    out = planned.folder / f"run-{planned.way}-{seed}"
    exported = planned.folder / f"export-{planned.way}-{seed}"
    run = execute(
        planned.plan,
        out,
        iterations=iterations,
        warmup=WARMUP,
        seed=seed,
        folder=planned.folder,
        progress=lambda done, total, said: print(
            f"{planned.way} {seed} {done}/{total}: {said}", flush=True
        ),
        saving=Saving(export=exported),
    )
    forecast = simulate(planned.plan, planned.facts)
    compared = compare_run(out, forecast, run, planned.facts)
    base = Path(str(planned.plan.job.weights_of("actor")))
    return {
        "way": planned.way,
        "seed": seed,
        "iterations": iterations,
        "placement": planned.plan.placement,
        "accuracy": greedy_accuracy(base, exported, rows),
        "reward": [row["rule_reward"] for row in read_metrics(out)],
        "slowdown": compared.machine_slowdown,
        "tasks": [
            {
                "name": row.name,
                "forecast_seconds": row.forecast_seconds,
                "as_run_seconds": row.as_run_seconds,
                "measured_seconds": row.measured_median_seconds,
                "error": row.error_at(),
                "error_at_the_machines_rate": row.error_at(compared.machine_slowdown or 1.0),
            }
            for row in (*compared.rows, compared.iteration)
        ],
    }


def greedy_accuracy(base: Path, folder: Path, rows: list[dict[str, Any]]) -> float:
    """Return the share of questions that `transformers` answers rightly out of a folder.

    Args:
        base: The model that adapters in the folder belong to.
    """
    import torch  # noqa: PLC0415  # slow imports
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    adapted = (folder / "adapter_config.json").is_file()
    held = base if adapted else folder
    model = AutoModelForCausalLM.from_pretrained(held, dtype=torch.float32).eval()
    if adapted:
        from peft import PeftModel  # noqa: PLC0415

        model = PeftModel.from_pretrained(model, folder).eval()
    texts = [
        tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        for row in rows
    ]
    right = 0.0
    for start in range(0, len(rows), 14):
        asked = tokenizer(texts[start : start + 14], return_tensors="pt", padding=True)
        with torch.no_grad():
            made = model.generate(**asked, max_new_tokens=NEW_TOKENS, do_sample=False)
        said = tokenizer.batch_decode(
            made[:, asked["input_ids"].shape[1] :], skip_special_tokens=True
        )
        right += sum(number("", text, row) for text, row in zip(said, rows[start:], strict=False))
    return right / len(rows)


def publish(found: dict[str, Any], out: Path) -> None:
    """Write the table, the curves and the numbers."""
    write_json(out / "real-model.json", found)
    curves: dict[str, list[list[float]]] = {}
    for run in found["runs"]:
        curves.setdefault(run["way"], []).append(run["reward"])
    picture = plot_learning(curves, out / "real-model.svg", "Mean reward, by what is trained")
    lines = [
        "# A real model, trained beside its forecast",
        "",
        (
            "Made by `python -m benchmarks.real_model`: SmolLM2-135M-Instruct, GRPO on sums of two numbers, 16 prompts of 8"
            " samples an iteration, on two CPU devices. Held-out questions are answered greedily by `transformers` out of"
            f" the exported folder; the model starts at {found['start']:.0%}."
        ),
        "",
        f"![learning curves]({picture.name})",
        "",
        "| trained | seed | iterations | held-out, end | rise | reward, first 3 | reward, last 3 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for run in found["runs"]:
        first, last = statistics.fmean(run["reward"][:3]), statistics.fmean(run["reward"][-3:])
        rise = 100 * (run["accuracy"] - found["start"])
        lines.append(
            f"| {run['way']} | {run['seed']} | {run['iterations']} | {run['accuracy']:.0%} | {rise:+.0f} points | {first:.2f} | {last:.2f} |"
        )
    for run in (each for each in found["runs"] if each["timed"]):
        lines += ["", f"## {run['way']}, seed {run['seed']}: {run['placement']}", ""]
        if (run["slowdown"] or 1) > BESIDE_OTHERS:
            lines.append(
                f"Other work ran beside this run (a fixed loop took {run['slowdown']:.1f} times as long as while the machine"
                " was profiled): its times say nothing of the forecast, and are not compared."
            )
            continue
        about = (
            "Forecast at the lengths that the run had; the last column at the rate that the machine had during the run"
            f" ({run['slowdown'] or 1:.2f} times as long for a fixed loop as while it was profiled)."
        )
        lines += [
            about,
            "",
            "| task | forecast | measured | error | at the machine's rate |",
            "|---|---:|---:|---:|---:|",
        ]
        for task in run["tasks"]:
            seconds = task["as_run_seconds"] or task["forecast_seconds"]
            lines.append(
                f"| {task['name']} | {show_seconds(seconds)} | {show_seconds(task['measured_seconds'])} |"
                f" {task['error']:+.0%} | {task['error_at_the_machines_rate']:+.0%} |"
            )
    beside = out / "real-model-trl.json"
    if beside.exists():
        lines += beside_trl(json.loads(beside.read_text(encoding="utf-8")))
    write_text(out / "real-model.md", "\n".join([*lines, ""]))


def beside_trl(found: dict[str, Any]) -> list[str]:
    """Return what `real_model_vs_trl.py` has found, as lines."""
    pairs, tokens, versions = found["pairs"], found["tokens"], found["versions"]
    ratio = statistics.median(pair["ratio"] for pair in pairs)
    ours, theirs = (
        tokens / statistics.median(pair[name] for pair in pairs)
        for name in ("seconds", "trl_seconds")
    )
    ratios = [pair["ratio"] for pair in pairs]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return [
        "",
        "## Beside TRL",
        "",
        (
            f"GRPO on the same weights, questions and {found['cores']} cores, 16 tokens a response, in {len(pairs)} pairs"
            f" of turns that alternate (`benchmarks/real_model_vs_trl.py`; TRL {versions['trl']}, transformers"
            f" {versions['transformers']}, torch {versions['torch']}; fp32; {found['layout']}). Other processes used"
            f" {found['load']:.1f} cores before. Aimed at was a ratio of 1.5."
        ),
        "",
        "| TRL, response tokens/s | here | ratio, median of pairs | by pair |",
        "|---:|---:|---:|---:|",
        f"| {theirs:.1f} | {ours:.1f} | {ratio:.2f} | {spread} |",
    ]


if __name__ == "__main__":
    main()
