"""Wrong input of every kind: one line on stderr, exit code 2, and nothing changed or half-written."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rlplan_cli.conftest import change, remove, write_profile

HUGGING_FACE = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 260,
    "max_position_embeddings": 512,
}  # fmt: skip


BEGUN_BEYOND = {
    "prompts": 4, "samples_per_prompt": 1, "prompt_tokens": 6, "response_tokens": 5,
    "over_provisioning": 1.5, "environments": [{"name": "tool", "step_seconds": 1.0}],
}  # fmt: skip


@dataclass(frozen=True)
class Wrong:
    """Hold one kind of wrong input: what is done to the project, what is run, what must be said."""

    name: str
    arguments: str
    said: tuple[str, ...]
    spoil: Callable[[], object] = lambda: None


def job(*keys, to, name, said, arguments="search job.yaml --out best.yaml --result all.json"):
    return Wrong(name, arguments, ("job.yaml", *said), lambda: change("job.yaml", *keys, to=to))


def plan(*keys, to, name, said, arguments="simulate plan.yaml --out f.json --trace t.json"):
    return Wrong(name, arguments, ("plan.yaml", *said), lambda: change("plan.yaml", *keys, to=to))


def draft(*keys, to, name, said):
    def spoil():
        change("draft.yaml", *keys[:1], to={}) if keys[0] == "tasks" else None
        change("draft.yaml", *keys, to=to)

    return Wrong(name, "simulate draft.yaml --out-plan full.yaml", ("draft.yaml", *said), spoil)


def file(path, content, *, name, said, arguments):
    def spoil():
        target = Path(path)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())

    return Wrong(name, arguments, said, spoil)


def plain(arguments, *, name, said):
    return Wrong(name, arguments, said)


SEARCH = "search job.yaml --out best.yaml"
SIMULATE = "simulate plan.yaml --out f.json"
EXECUTE = "execute plan.yaml --out runs/new --iterations 3"

JOB_FIELDS = [
    job("algoritm", to="ppo", name="unknown key", said=("algoritm", "unknown key", "did you mean 'algorithm'")),
    job("workload", to=BEGUN_BEYOND, name="more episodes begun than a search plays", said=("workload.over_provisioning: is not simulated where environments answer", "found 1.5", "allowed: 1")),
    job("Name", to=1, name="capitalised key", said=("Name", "unknown key", "did you mean 'name'")),
    job("int", to=1, name="key that is a type's name", said=("int: unknown key",)),
    job("trace", to=1, name="key that is an alternative's name", said=("trace: unknown key",)),
    job("TASKS", to=1, name="key in capitals", said=("TASKS: unknown key", "allowed: adapters")),
    job("workload", "Prompts", to=4, name="capitalised key inside", said=("workload.Prompts: unknown key", "allowed: environments, epochs", "did you mean 'prompts'")),
    job("cluster", 0, "str", to=4, name="key in a list that is a type's name", said=("cluster.0.str: unknown key", "gpus_per_node")),
    job("workload", "prompt_tokens", to={"distribution": "uniform", "low": 1, "high": 2, "High": 3}, name="key that one distribution has not", said=("workload.prompt_tokens.High: unknown key", "allowed: distribution, high, low;", "did you mean 'high'")),
    job("\x1b[2Jname", to=1, name="control characters in a key", said=(r"\x1b[2Jname: unknown key",)),
    job("name" * 300_000, to=1, name="key of a megabyte", said=("namename...: unknown key",)),
    job("algorithm", to="ppo" * 400_000, name="value of a megabyte", said=("algorithm", "opp...'")),
    job("workload", "promts", to=4, name="unknown key inside", said=("workload.promts", "did you mean 'prompts'")),
    job("algorithm", to="pppo", name="misspelt algorithm", said=("algorithm", "'pppo'", "did you mean 'ppo'")),
    job("models", "actor", to="lama-2-7b", name="misspelt model", said=("models.actor", "'lama-2-7b'", "did you mean 'llama-2-7b'")),
    job("models", "actr", to="tiny", name="misspelt role", said=("models.actr", "did you mean 'actor'")),
    job("models", "cost", to="tiny", name="role that the algorithm has not", said=("models.cost", "ppo")),
    job("models", to={"actor": "tiny", "reference": "tiny", "reward": "tiny"}, name="PPO without critic", said=("models.critic", "is missing", "ppo")),
    job("models", to=["tiny"], name="list where a mapping belongs", said=("models", "mapping", "a list")),
    job("models", "actor", to="", name="model without a name", said=("models.actor", "neither a known model")),
    job("models", "actor", to="run", name="model folder without a config", said=("models.actor", "folder without config.json", "'run'")),
    job("models", "actor", to=7, name="number where a name belongs", said=("models.actor",)),
    job("workload", "prompts", to=-4, name="negative number", said=("workload.prompts", "-4", "greater than or equal to 1")),
    job("workload", "prompts", to=0, name="zero", said=("workload.prompts", "found 0")),
    job("workload", "prompts", to=2.5, name="fraction of a prompt", said=("workload.prompts", "2.5")),
    job("workload", "prompts", to=True, name="true where a number belongs", said=("workload.prompts", "must be a number, not true or false", "True")),
    job("workload", "prompt_tokens", to=True, name="true where lengths belong", said=("workload.prompt_tokens", "not true or false")),
    job("workload", "prompts", to=float("inf"), name="infinity", said=("workload.prompts", "finite")),
    job("hyperparameters", to={"learning_rate": float("nan")}, name="not a number", said=("hyperparameters.learning_rate", "finite")),
    job("workload", "prompts", to=10**18, name="huge number", said=("workload.prompts", "1000000000000000000")),
    job("workload", "prompts", to=10**9, name="more responses than there can be", said=("workload.prompts", "at most 262,144")),
    job("cluster", 0, "nodes", to=10**9, name="more GPUs than there are", said=("cluster", "2,000,000,000 GPUs", "at most 1,000,000")),
    job("workload", "response_tokens", to=4096, name="longer than the model's positions", said=("workload.response_tokens", "4104", "at most 512")),
    job("workload", "updates", to=3, name="batch that does not divide", said=("workload.updates", "16 sequences", "found 3", "2 or 4")),
    job("workload", "prompt_tokens", to={"distribution": "uniform", "low": 9, "high": 3}, name="uniform upside down", said=("workload.prompt_tokens.low", "found 9", "at most 3")),
    job("workload", "prompt_tokens", to={"distribution": "normal", "mean": 9}, name="unknown distribution", said=("workload.prompt_tokens", "normal", "lognormal")),
    job("workload", "prompt_tokens", to={"distribution": "trace", "trace": "absent.csv", "column": "n"}, name="missing trace", said=("workload.prompt_tokens.trace", "no such file", "absent.csv")),
    job("cluster", to=[], name="empty cluster", said=("cluster", "is empty")),
    job("cluster", to={"gpu": "cpu"}, name="mapping where a list belongs", said=("cluster", "must be a list", "a mapping")),
    job("cluster", 0, "gpu", to="a100-80g", name="misspelt device", said=("cluster.0.gpu", "'a100-80g'", "did you mean 'a100-80gb-sxm'")),
    job("cluster", 0, "inter_node_gbps", to=-200, name="negative bandwidth", said=("cluster.0.inter_node_gbps", "-200")),
    job("precision", to="fp13", name="unknown precision", said=("precision", "fp13", "fp32")),
    job("precision", to="fp16", name="precision without a rate", said=("precision", "fp16", "sheet of cpu")),
    job("engines", to={"generate": "vlm"}, name="unknown engine", said=("engines.generate", "'vlm'", "did you mean 'vllm'")),
    job("engines", to={"train": "vllm"}, name="engine that cannot train", said=("engines.train", "'vllm'")),
    job("rewards", "function", to="digit", name="misspelt rule", said=("rewards.function", "'digit'", "did you mean 'digits'")),
    job("rewards", "function", to="rule.py", name="rule file without a function", said=("rewards.function", "path/to/file.py:name")),
    job("rewards", "function", to="absent.py:score", name="missing rule file", said=("rewards.function", "no such file")),
    job("prompts_file", to="prompt.jsonl", name="missing prompts file", said=("prompts_file", "did you mean 'prompts.jsonl'")),
    job("version", to=2, name="job of another version", said=("version", "found 2", "allowed: 1")),
    job("seed", to=-1, name="negative seed", said=("seed", "-1")),
    job("hyperparameters", to={"clip_ratio": 1.5}, name="fraction above one", said=("hyperparameters.clip_ratio", "1.5")),
    Wrong("no reward at all", SEARCH, ("job.yaml", "rewards", "models.reward"), lambda: (remove("job.yaml", "models", "reward"), remove("job.yaml", "rewards"))),
    Wrong("missing key", SEARCH, ("job.yaml", "workload", "is missing"), lambda: remove("job.yaml", "workload")),
]  # fmt: skip

JOB_FILES = [
    plain("search jop.yaml --out best.yaml", name="missing job", said=("jop.yaml", "no such file", "did you mean 'job.yaml'")),
    plain("search absent/job.yaml", name="missing folder", said=("absent/job.yaml", "no such file")),
    plain("search run", name="folder in place of a job", said=("run", "is a folder")),
    plain("search /dev/zero --out best.yaml", name="device in place of a job", said=("/dev/zero", "is a device, pipe or socket")),
    Wrong("pipe in place of a job", "search pipe --out best.yaml", ("pipe: is a device, pipe or socket",), lambda: os.mkfifo("pipe")),
    Wrong("job of megabytes", SEARCH, ("job.yaml", "too large", "at most"), lambda: os.truncate("job.yaml", 3 * 2**20)),
    Wrong("device in place of a model", SEARCH, ("/dev/zero: is a device, pipe or socket",), lambda: change("job.yaml", "models", "actor", to="/dev/zero")),
    Wrong("pipe in place of a model", SEARCH, ("is a device, pipe or socket",), lambda: (
        Path("mine").mkdir(), os.mkfifo("mine/config.json"), change("job.yaml", "models", "actor", to="mine"))),
    file("job.yaml", "", name="empty job", said=("job.yaml", "is empty"), arguments=SEARCH),
    file("job.yaml", "- a\n- b\n", name="list in place of a job", said=("job.yaml", "holds no job"), arguments=SEARCH),
    file("job.yaml", "algorithm: ppo\nmodels: {actor: [\n", name="broken YAML", said=("job.yaml", "is not YAML at line 3"), arguments=SEARCH),
    file("job.yaml", "seed: 1\nseed: 2\n", name="key that comes twice", said=("job.yaml", "line 2", "'seed' comes twice"), arguments=SEARCH),
    file("job.yaml", b"name: caf\xe9\n", name="not UTF-8", said=("job.yaml", "cannot be read: line 1", "UTF-8", "byte 0xe9"), arguments=SEARCH),
    file("job.yaml", b"\x00\x01\x02", name="binary file", said=("job.yaml", "is not YAML"), arguments=SEARCH),
    file("job.yaml", "seed: " + "9" * 5000, name="number of 5,000 digits", said=("job.yaml", "is not YAML"), arguments=SEARCH),
    file("job.yaml", "when: 2024-13-45\n", name="date that there is not", said=("job.yaml", "is not YAML"), arguments=SEARCH),
    file("job.yaml", "a: " + "[" * 3000, name="nested without end", said=("job.yaml", "is not YAML"), arguments=SEARCH),
    Wrong("list that contains itself", SEARCH, ("job.yaml", "cluster"), lambda: (
        remove("job.yaml", "cluster"),
        Path("job.yaml").write_text(Path("job.yaml").read_text() + "cluster: &a [*a]\n"))),
    file("job.yaml", "1: 2\n", name="number for a key", said=("job.yaml",), arguments=SEARCH),
    file("job.yaml", "a: !!python/object:os.system {}\n", name="Python object", said=("job.yaml", "is not YAML"), arguments=SEARCH),
]  # fmt: skip

MODEL_FILES = [
    Wrong(name, SEARCH, ("config.json", *said), lambda text=text: (
        Path("mine").mkdir(), Path("mine/config.json").write_text(text),
        change("job.yaml", "models", "actor", to="mine"),
    ))
    for name, text, said in (
        ("model config that is no JSON", "{", ("is not JSON",)),
        ("model config of another family", json.dumps(HUGGING_FACE | {"model_type": "bert"}), ("model_type", "'bert'")),
        ("model config without layers", json.dumps({k: v for k, v in HUGGING_FACE.items() if "layers" not in k}), ("num_hidden_layers", "is missing")),
        ("model whose KV heads do not divide", json.dumps(HUGGING_FACE | {"num_key_value_heads": 3}), ("num_key_value_heads", "does not divide")),
        ("model with quantised weights", json.dumps(HUGGING_FACE | {"quantization_config": {"bits": 4}}), ("quantization_config", "not supported")),
    )
]  # fmt: skip

PLANS = [
    plan("job", "workload", to=BEGUN_BEYOND, name="more begun than a forecast plays", said=("plan.yaml: job.workload.over_provisioning is 1.5: the simulator cannot", "all that begin: 1")),
    plan("job", "workload", to=BEGUN_BEYOND, name="more begun than a check plays", arguments="check plan.yaml", said=("plan.yaml: job.workload.over_provisioning is 1.5: the simulator cannot", "all that begin: 1")),
    plan("tasks", "actor.update", "tp", to=3, name="TP that does not divide the heads", said=("tasks.actor.update.tp", "4 heads", "found 3", "1, 2")),
    plan("tasks", "actor.update", "dp", to=4, name="layout that covers more than its pool", said=("tasks.actor.update", "dp 4", "but pool p0 has 2")),
    plan("tasks", "actor.generate", "pool", to="p7", name="pool that there is not", said=("tasks.actor.generate.pool", "'p7'")),
    plan("tasks", "actor.update", "engine", to="megatron-cor", name="unknown engine in a plan", said=("tasks.actor.update.engine", "did you mean 'megatron-core'")),
    plan("tasks", "actor.update", "zero", to=3, name="ZeRO that the engine has not", said=("tasks.actor.update.zero", "torch-tp-dp", "found 3")),
    plan("tasks", "actor.update", "recompute", to="some", name="unknown recomputation", said=("tasks.actor.update.recompute", "'some'", "selective")),
    plan("tasks", "actor.update", "micro_batch", to=0, name="empty micro-batch", said=("tasks.actor.update.micro_batch", "found 0")),
    plan("tasks", "actor.generate", "memory_fraction", to=1.2, name="more than the memory", said=("tasks.actor.generate.memory_fraction", "1.2")),
    plan("tasks", "actor.updat", to={"pool": "p0"}, name="misspelt task", said=("tasks.actor.updat", "did you mean 'actor.update'")),
    plan("pools", 0, "gpus", to=3, name="more GPUs than the cluster has", said=("pools.0.gpus", "found 3", "at most 2")),
    plan("pools", 0, "device", to="h100-80gb-sxm", name="device that the cluster has not", said=("pools.0.device", "'h100-80gb-sxm'", "cpu")),
    plan("pools", 0, "roles", to=["actor", "critic", "reward"], name="role without a pool", said=("tasks.reference.compute_log_prob.pool", "reference")),
    plan("pools", to=[], name="plan without pools", said=("tasks.actor.generate.pool", "one of pools")),
    plan("order", "p0", to=["actor.update"], name="order without all tasks", said=("order.p0", "actor.update")),
    plan("order", "p9", to=[], name="order of a pool that there is not", said=("order.p9", "no such pool")),
    plan("transition", to="two-copies", name="two copies on one pool", said=("transition", "'two-copies'")),
    plan("transition", to="hybridflo", name="misspelt transition", said=("transition", "did you mean 'hybridflow'")),
    plan("mode", to="streaming", name="mode that wants a pool of its own", said=("mode", "'streaming'", "sync")),
    plan("staleness", to=2, name="staleness in mode sync", said=("staleness", "found 2")),
    plan("version", to=9, name="plan of another version", said=("version", "found 9", "allowed: 1")),
    plan("job", "workload", "prompts", to=7, name="wrong job inside a plan", said=("job.workload.updates",)),
    plan("job", to="absent.yaml", name="plan of a missing job", said=("job: no such file", "'absent.yaml'")),
    plan("job", to="", name="plan of a job without a name", said=("job: is a folder",)),
    file("plan.yaml", "[]", name="list in place of a plan", said=("plan.yaml", "holds no plan"), arguments=SIMULATE),
    file("plan.yaml", "", name="empty plan", said=("plan.yaml", "is empty"), arguments=SIMULATE),
    plain("simulate job.yaml", name="job in place of a plan", said=("job.yaml",)),
    plain("simulate profile", name="folder without a plan", said=("profile/plan.yaml", "no such file")),
]  # fmt: skip

DRAFTS = [
    draft("tasks", "actor.updte", to={"tp": 1}, name="misspelt task of a partial plan", said=("tasks.actor.updte", "did you mean 'actor.update'")),
    draft("tasks", "actor.update", to={"tp": 3}, name="impossible TP in a partial plan", said=("tasks.actor.update.tp", "found 3")),
    draft("tasks", "actor.update", to={"pool": "p9"}, name="unknown pool in a partial plan", said=("tasks.actor.update.pool", "'p9'", "p0")),
    draft("tasks", "actor.update", to={"engine": "vllm"}, name="engine of another kind in a partial plan", said=("tasks.actor.update.engine", "'vllm'")),
    draft("tasks", "actor.update", to={"first_stage_layers": 2, "pp": 1}, name="first stage without a pipeline", said=("tasks.actor.update.first_stage_layers", "pipeline", "found 2")),
    draft("pools", 0, "roles", to=["actor", "critic", "reward"], name="partial plan without a role", said=("pools", "reference")),
    draft("pools", 0, "gpus", to=5, name="partial plan with too many GPUs", said=("pools.0.gpus", "at most 2")),
]  # fmt: skip

PROFILES = [
    plain(f"{SEARCH} --profile absent", name="missing profile", said=("absent", "no such folder")),
    plain(f"{SEARCH} --profile run", name="folder that is no profile", said=("run/profile.yaml", "no such file")),
    Wrong("profile of another device", f"{SEARCH} --profile other", ("other", "device", "'h100-80gb-sxm'", "cpu"), lambda: write_profile(Path("other"), "h100-80gb-sxm")),
    Wrong("profile of another version", f"{SEARCH} --profile profile", ("profile.yaml", "version", "found 2"), lambda: change("profile/profile.yaml", "version", to=2)),
    file("profile/gemm.csv", "precision,m,k\nfp32,1,2\n", name="table that misses a column", said=("gemm.csv", "misses a column"), arguments=f"{SIMULATE} --profile profile"),
    file("profile/gemm.csv", "", name="empty table", said=("gemm.csv", "misses a column"), arguments=f"{SIMULATE} --profile profile"),
    file("profile/gem.csv", "a\n", name="unknown table", said=("gem.csv", "did you mean 'gemm'"), arguments="profile show profile"),
    Wrong("negative seconds", "profile show profile", ("gemm.csv", "row 2", "'-1'"), lambda: spoil_cell("-1")),
    Wrong("seconds that are no number", "profile show profile", ("gemm.csv", "row 2", "'nan'"), lambda: spoil_cell("nan")),
    plain("profile --device a1000 --out p", name="misspelt device to profile", said=("'a1000'", "known")),
    plain("profile --devices 0 --out p", name="no device to profile", said=("--devices",)),
    plain("profile --out job.yaml", name="file in place of a profile's folder", said=("--out", "job.yaml", "is not a folder")),
    plain("profile --job jop.yaml --out p", name="profile for a missing job", said=("jop.yaml", "no such file")),
]  # fmt: skip


def spoil_cell(value):
    path = Path("profile/gemm.csv")
    header, first, *rest = path.read_text().splitlines()
    cells = first.split(",")
    cells[4] = value
    path.write_text("\n".join([header, ",".join(cells), *rest]) + "\n")


RUNS = [
    plain("validate absent", name="missing run", said=("absent",)),
    plain("validate profile", name="folder that holds no run", said=("profile", "holds no measured.json")),
    plain("validate job.yaml", name="file in place of a run", said=("job.yaml",)),
    Wrong("forecast of another version", "validate run", ("forecast.json", "version", "found 9"), lambda: change("run/forecast.json", "version", to=9)),
    Wrong("forecast with an unknown key", "validate run", ("forecast.json", "iteration_secs", "did you mean 'iteration_seconds'"), lambda: change("run/forecast.json", "iteration_secs", to=1)),
    Wrong("forecast of an unknown source", "validate run", ("forecast.json", "costs.0.source", "'guessed'", "measured"), lambda: change("run/forecast.json", "costs", 0, "source", to="guessed")),
    Wrong("run of another version", "validate run", ("measured.json", "version", "found 9"), lambda: change("run/measured.json", "version", to=9)),
    Wrong("run that is all warm-up", "validate run", ("run", "5 iterations", "warm-up"), lambda: change("run/measured.json", "warmup_iterations", to=5)),
    file("run/measured.json", '{"version": 1, "plan":', name="measurement cut off", said=("measured.json", "is not JSON"), arguments="validate run"),
    file("run/measured.json", "[1]", name="list in place of a measurement", said=("measured.json",), arguments="validate run"),
    file("run/metrics.jsonl", '{"iteration": 0}\nnonsense\n', name="corrupt metrics", said=("metrics.jsonl", "line 2"), arguments="report run --out r"),
    file("run/metrics.jsonl", '{"iteration": 0, "loss": "low"}\n', name="metrics that are no numbers", said=("metrics.jsonl", "line 1", "loss"), arguments="report run --out r"),
    plain("report absent", name="report of nothing", said=("absent", "no such file")),
    plain("report run --search absent.json", name="report with a missing search", said=("absent.json", "no such file")),
    plain("report run --search run/forecast.json", name="report with a forecast for a search", said=("forecast.json",)),
    plain("report run --out job.yaml", name="report onto a file", said=("--out", "is not a folder", "found 'job.yaml'")),
]  # fmt: skip

OPTIONS = [
    plain("search job.yaml --spec gpus=1 --max-gpus 2", name="limit that is given twice", said=("--spec: gpus", "two limits of the same name", "'1 and 2'")),
    plain("search job.yaml --objective cost --pareto cost,energy", name="objective beside those of a front", said=("--objective", "'cost'", "without --pareto")),
    plain("check job.yaml --gpu h200", name="GPU beside a job that says its own", said=("--gpu", "'h200'", "job.yaml is a job or a plan")),
    plain("compare job.yaml --mean-prompt 100", name="prompts of a comparison of systems", said=("--mean-prompt", "has no effect here", "with --with")),
    plain("compare job.yaml --model qwen3-8b", name="model of a comparison of systems", said=("--model", "has no effect here", "with --with")),
    plain("compare job.yaml --with verl --turns 3", name="turns beside a job that says its own", said=("--turns", "job.yaml is a job or a plan")),
    plain("serach job.yaml", name="unknown command", said=("'serach'", "'search'")),
    plain("search", name="missing argument", said=("Missing argument", "search --help")),
    plain("search job.yaml --ou best.yaml", name="unknown option", said=("--ou", "--out")),
    plain("rent job.yaml --steps 4 --max-days 5", name="limit by the name that check has for it", said=("--max-days", "Possible options: --deadline)", "rent --help")),
    plain("check job.yaml --steps 4 --deadline 5d", name="limit by the name that rent has for it", said=("--deadline", "--max-days", "check --help")),
    plain("init a.yaml --nodes 3", name="nodes in place of GPUs", said=("--nodes", "--gpus", "init --help")),
    plain("export plan.yaml --framework verl", name="framework of an export", said=("--framework", "Possible options: --to)")),
    plain("search job.yaml --framework verl", name="framework of a search", said=("--framework", "'verl'", "without it; --for verl searches")),
    plain("search job.yaml --pareto throughput,time-to-score", name="front of what has no limit", said=("no limit is set in time-to-score", "allowed: cost, energy, throughput")),
    plain("check job.yaml --steps 4 --max-days 5d", name="days with a unit", said=("'--max-days': is no number", "allowed: such as", "found '5d'")),
    plain("check job.yaml --steps 4e2", name="steps as a power", said=("'--steps': is no whole number", "found '4e2'")),
    plain("search job.yaml --out", name="option without its value", said=("--out",)),
    plain("search job.yaml other.yaml", name="argument too many", said=("other.yaml",)),
    plain("simulate plan.yaml --iterations 0", name="no iteration", said=("--iterations", "0")),
    plain("simulate plan.yaml --iterations many", name="iterations in words", said=("--iterations", "many")),
    plain("simulate plan.yaml --out run", name="output that is a folder", said=("--out", "run", "is a folder")),
    Wrong("output onto a symbolic link", "search job.yaml --out link.yaml", ("--out: is a symbolic link", "link.yaml"), lambda: Path("link.yaml").symlink_to("plan.yaml")),
    Wrong("output onto a pipe", "search job.yaml --out pipe", ("--out: is a device, pipe or socket",), lambda: os.mkfifo("pipe")),
    plain("search job.yaml --out /dev/full", name="output onto a device", said=("--out: is a device, pipe or socket", "/dev/full")),
    plain("simulate plan.yaml --out job.yaml/f.json", name="output inside a file", said=("--out", "job.yaml", "is not a folder")),
    plain("simulate plan.yaml --out plan.yaml", name="output over the input", said=("--out", "plan.yaml", "would replace")),
    plain("simulate plan.yaml --out x.json --trace x.json", name="two outputs in one file", said=("--trace", "x.json", "--out")),
    plain("search job.yaml --out job.yaml", name="plan over its job", said=("--out", "job.yaml", "would replace")),
    plain("search job.yaml --out /proc/best.yaml", name="output where nobody may write", said=("/proc/best.yaml", "cannot be written")),
    plain(f"search job.yaml --out {'x' * 300}", name="output with too long a name", said=("x" * 300,)),
    plain(f"search {'x' * 300}", name="input with too long a name", said=("x" * 300,)),
    plain("schema forecast", name="schema that there is not", said=("'forecast'", "job")),
    plain("init job.yaml", name="init over a file", said=("job.yaml", "exists already", "--force")),
    plain("init run --force", name="init over a folder", said=("run", "is a folder")),
    plain("init new.yaml --model tinny", name="init with a misspelt model", said=("models.actor", "'tinny'", "did you mean 'tiny'")),
    plain("init new.yaml --gpu h1000", name="init with a misspelt device", said=("'h1000'", "known")),
    plain("init new.yaml --gpus 0", name="init without GPUs", said=("--gpus", "0")),
    plain("init new.yaml --gpu a100-80gb-sxm --gpus 12", name="init with half a node", said=("12", "multiples of 8")),
    plain("init new.yaml --algorithm dpo", name="init with an unknown algorithm", said=("--algorithm", "dpo", "ppo")),
]  # fmt: skip

EXECUTIONS = [
    plain(f"{EXECUTE} --warmup 3", name="all warm-up", said=("--warmup", "found 3", "below 3")),
    plain("execute plan.yaml --out run", name="folder with a run", said=("run", "holds a run already", "--out")),
    plain("execute plan.yaml --out job.yaml", name="run onto a file", said=("--out", "job.yaml", "is not a folder")),
    plain("execute absent.yaml --out runs/new", name="execution of nothing", said=("absent.yaml", "no such file")),
    plan("job", "prompts_file", to="absent.jsonl", name="execution without its prompts", said=("prompts_file", "absent.jsonl"), arguments=EXECUTE),
    plan("job", "rewards", "function", to="digts", name="execution with a misspelt rule", said=("rewards.function", "'digts'", "did you mean 'digits'"), arguments=EXECUTE),
    Wrong("execution with a rule that its file has not", EXECUTE, ("rule.py", "'scor'", "did you mean 'score'"), lambda: change("plan.yaml", "job", "rewards", "function", to="rule.py:scor")),
    Wrong("PP that the engine does not run", EXECUTE, ("plan.yaml", "tasks.actor.update.pp", "torch-tp-dp", "found 2", "at most 1"), lambda: (
        change("plan.yaml", "tasks", "actor.update", "pp", to=2), change("plan.yaml", "tasks", "actor.update", "dp", to=1),
        change("plan.yaml", "tasks", "actor.update", "tp", to=1))),
    plan("tasks", "actor.generate", "zero", to=3, name="sharding that what generates has not", said=("tasks.actor.generate.zero", "3"), arguments=EXECUTE),
    plan("tasks", "actor.generate", "engine", to="lmdeploy-turbomind", name="engine that the executor has not", said=("tasks.actor.generate.engine", "lmdeploy-turbomind"), arguments=EXECUTE),
    plan("tasks", "actor.generate", "engine", to="vllm", name="head size that an engine has not", said=("models.actor.head_dim", "vllm"), arguments=EXECUTE),
    file("prompts.jsonl", '{"prompt": "a"}\n{"question": "b"}\n', name="prompt without a prompt", said=("prompts.jsonl: line 2", "prompt"), arguments=EXECUTE),
    file("prompts.jsonl", '{"prompt": "much too long a prompt"}\n', name="prompt that is too long", said=("prompts.jsonl: line 1", "1 to 8"), arguments=EXECUTE),
    file("prompts.jsonl", "", name="no prompts", said=("prompts.jsonl", "holds no prompts"), arguments=EXECUTE),
]  # fmt: skip

EVERYTHING = [
    *JOB_FIELDS, *JOB_FILES, *MODEL_FILES, *PLANS, *DRAFTS, *PROFILES, *RUNS, *OPTIONS, *EXECUTIONS,
]  # fmt: skip


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("wrong", EVERYTHING, ids=lambda wrong: wrong.name.replace(" ", "-"))
def test_wrong_input_gives_one_line_exit_code_2_and_changes_nothing(project, rlplan, wrong):
    (project / "rule.py").write_text("def score(prompt, response, row):\n    return 1.0\n")
    wrong.spoil()
    before = contents(project)
    answer = rlplan(*wrong.arguments.split())
    assert answer.code == 2, answer
    assert len(answer.lines) == 1, answer.err
    assert answer.lines[0].startswith("rlplan: ")
    assert answer.out == ""
    for words in wrong.said:
        assert words in answer.err, f"{words!r} is not in {answer.err!r}"
    assert contents(project) == before


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("search jop.yaml", "did you mean 'job.yaml'"),
        ("simulate plan.yaml --iterations many", "found 'many'"),
        ("validate profile", "holds no measured.json"),
    ],
)
def test_the_installed_command_answers_wrong_input_in_the_same_way(project, arguments, said):
    program = "from rlplan_cli.main import main; main()"
    command = [sys.executable, "-c", program, *arguments.split()]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert len(answer.stderr.splitlines()) == 1
    assert said in answer.stderr


def test_there_are_kinds_enough_and_each_has_its_own_name():
    names = [wrong.name for wrong in EVERYTHING]
    assert len(names) == len(set(names)) >= 30
