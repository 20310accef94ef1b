"""What is mutated: a folder with files of every kind that commands read, and the commands that read them."""

import contextlib
import csv
import io
import json
import shutil
from dataclasses import dataclass

import yaml

from rlplan.calibration import Calibration
from rlplan.files.decoding import adapter
from rlplan.files.writing import write_yaml
from rlplan.job import Job
from rlplan.plan import PlanDraft
from rlplan.planner.answers.completion import load_plan
from rlplan.profiles.tables.table import new_profile
from rlplan.simulator.simulate import simulate
from rlplan_cli.main import run as run_cli
from tests.hard.mutation import Words
from tests.house.tree import ROOT
from tests.planner.configs.test_importing import NEMO, OPENRLHF, VERL
from tests.planner.configs.test_rules_of_easyr1 import EASYR1
from tests.planner.measured.test_checking import WRITERS
from tests.rlplan_cli.conftest import DRAFT, JOB, write_run

HELD = ROOT / "evals" / "held"
# Real scripts and recipes, where a copy lies beside the checkout.
PUBLISHED = ROOT.parent / "shared" / "data"
GPU = "--gpu h100-80gb-sxm --mean-response 300"


@dataclass(frozen=True)
class Seed:
    """Hold a file that is mutated.

    Attributes:
        subject: What it is, for counts: `job`, `plan`, ...
        file: Its path in the folder.
        kind: How it is mutated: `yaml`, `json`, `lines` of JSON, `table`, `text` or `bytes`.
        commands: Command lines that read it, one of which a case takes.
    """

    subject: str
    file: str
    kind: str
    commands: tuple[str, ...]


def build(home):
    """Write the folder and return its seeds and the words that are known in it."""
    seeds = [
        *_jobs(home), *_plans(home), *_profiles(home), *_runs(home), *_sites(home), *_logs(home),
        *_configs(home), *_models(home), *_tables(home), *_sheets(home),
    ]  # fmt: skip
    return seeds, _words(home, seeds)


def _words(home, seeds):
    words = Words()
    for kind in (Job, PlanDraft, Calibration):
        words.learn_schema(adapter(kind).json_schema())
    for seed in seeds:
        if seed.kind in {"yaml", "json"}:
            words.learn(yaml.load((home / seed.file).read_bytes(), Loader=yaml.CSafeLoader))
    return words


def _jobs(home):
    rows = [json.dumps({"prompt": f"say {number}"}) for number in range(32)]
    (home / "prompts.jsonl").write_text("\n".join(rows) + "\n")
    (home / "lengths.csv").write_text("tokens\n" + "\n".join(map(str, range(4, 9))) + "\n")
    write_yaml(home / "job.yaml", JOB)
    lengths = {"distribution": "trace", "trace": "lengths.csv", "column": "tokens"}
    traced = JOB | {
        "workload": JOB["workload"] | {"response_tokens": lengths},
        "specs": {"gpus": 2},
    }
    write_yaml(home / "traced.yaml", traced)
    found = []
    for path in sorted(ROOT.glob("examples/*.yaml")):
        if "plan" not in path.name:
            shutil.copy(path, home)
            found.append(path.name)
    shutil.copytree(ROOT / "examples" / "turns", home / "turns")
    small = ("job.yaml", "traced.yaml", "turns/job.yaml")
    yield Seed("job", "lengths.csv", "table", ("search traced.yaml --out best.yaml",))
    for name in small:
        yield Seed("job", name, "yaml", (
            f"search {name} --out best.yaml --result all.json", f"search {name} --json", f"check {name}",
            f"search {name} --pareto throughput,memory --plot front.svg", f"compare {name} --systems verl,openrlhf",
            f"search {name} --objective cost --seconds 1", f"compare {name} --systems verl-fsdp,slime --json",
        ))  # fmt: skip
    for name in found:
        yield Seed(
            "job",
            name,
            "yaml",
            (f"search {name} --seconds 2 --out best.yaml", f"check {name} --json"),
        )


def _plans(home):
    write_yaml(home / "draft.yaml", DRAFT)
    plan, _ = load_plan(home / "draft.yaml")
    write_yaml(home / "plan.yaml", plan)
    write_yaml(home / "async.yaml", _asynchronous())
    shutil.copy(ROOT / "examples" / "ppo-7b-16xa100.plan.yaml", home)
    for name in ("draft.yaml", "plan.yaml", "async.yaml", "ppo-7b-16xa100.plan.yaml"):
        yield Seed("plan", name, "yaml", (
            f"simulate {name} --json --out f.json --trace t.json", f"simulate {name} --out-plan full.yaml",
            f"simulate {name} --iterations 5", f"check {name}", f"report {name} --out r", f"search {name} --out best.yaml",
        ))  # fmt: skip


def _asynchronous():
    job = JOB | {
        "algorithm": "grpo",
        "models": {"actor": "tiny", "reference": "tiny"},
        "workload": JOB["workload"] | {"samples_per_prompt": 4},
    }
    pools = [
        {"name": "train", "device": "cpu", "gpus": 1, "roles": ["actor", "reference"]},
        {"name": "roll", "device": "cpu", "gpus": 1, "roles": ["actor"]},
    ]
    tasks = {"actor.generate": {"pool": "roll"}, "actor.update": {"pool": "train"}}
    return {
        "job": job,
        "pools": pools,
        "tasks": tasks,
        "mode": "async",
        "staleness": 2,
        "transition": "two-copies",
    }


def _profiles(home):
    profile = new_profile("small", "cpu", {"fingerprint": "abc"}, {"torch": "2"})
    for size in (64, 128, 256):
        for rest in (32, 64):
            keys = {"precision": "fp32", "m": size, "k": rest, "n": 64}
            profile.add("gemm", keys, [1e-5, 2e-5, 3e-5])
    profile.finish()
    profile.write(home / "profile")
    commands = ("simulate plan.yaml --profile profile", "profile show profile --plots plots", "profile show profile --json",
                "search job.yaml --profile profile", "validate run --profile profile")  # fmt: skip
    yield Seed("profile", "profile/profile.yaml", "yaml", commands)
    yield Seed("profile", "profile/gemm.csv", "table", commands)
    write_yaml(home / "map.yaml", {
        "table": "gemm", "columns": {"m": "tokens", "k": "inner", "n": "outer", "seconds": "ms"},
        "constants": {"precision": "bf16"}, "seconds_per_unit": 0.001, "source": "mine",
    })  # fmt: skip
    (home / "theirs.csv").write_text("tokens,inner,outer,ms\n64,32,64,0.1\n128,32,64,0.2\n")
    imports = ("profile import theirs.csv --format csv --map map.yaml --device a100 --out p",)
    yield Seed("profile", "map.yaml", "yaml", imports)
    yield Seed("profile", "theirs.csv", "table", imports)


def _runs(home):
    plan, facts = load_plan(home / "plan.yaml")
    write_run(home / "run", plan, simulate(plan, facts, iterations=3))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert (
            run_cli(["search", str(home / "job.yaml"), "--result", str(home / "search.json")]) == 0
        )
    commands = ("validate run", "validate run --json", "report run --out r", "check-step run",
                "calibrate run --out s.yaml", "simulate run", "report run --search search.json --out r")  # fmt: skip
    for file, kind in (("measured.json", "json"), ("forecast.json", "json"), ("plan.yaml", "yaml")):
        yield Seed("run", f"run/{file}", kind, commands)
    yield Seed("run", "run/metrics.jsonl", "lines", ("report run --out r",))
    yield Seed("run", "search.json", "json", ("report plan.yaml --search search.json --out r",))


def _sites(home):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert run_cli(["calibrate", str(home / "run"), "--out", str(home / "site.yaml")]) == 0
    yield Seed("site", "site.yaml", "yaml", (
        "simulate plan.yaml --site site.yaml", "search job.yaml --site site.yaml", "validate run --site site.yaml",
        "report plan.yaml --site site.yaml --out r",
    ))  # fmt: skip


def _logs(home):
    figures = {
        "timing_s/gen": 2.0, "timing_s/ref": 0.5, "timing_s/values": 0.4, "timing_s/update_critic": 1.0,
        "timing_s/update_actor": 1.1, "timing_s/step": 5.5, "response_length/mean": 8.0,
        "response_length/max": 8.0, "prompt_length/mean": 8.0,
    }  # fmt: skip
    steps = [
        {key: value * (1 + 0.01 * number) for key, value in figures.items()} for number in range(5)
    ]
    for name, write in WRITERS.items():
        file = f"log.{name}"
        write(home / file, "verl", steps)
        if name == "events":
            file += "/events.out.tfevents.1.host"
        kind = {"console": "text", "jsonl": "lines", "events": "bytes"}.get(name, "table")
        log = f"log.{name}"
        yield Seed("log", file, kind, (
            f"check-step {log} --plan plan.yaml", f"check-step {log} --job job.yaml --json",
            f"calibrate {log} --plan plan.yaml --out s.yaml",
        ))  # fmt: skip


def _configs(home):
    words = " ".join(f"'{word}'" for word in VERL)
    (home / "verl.sh").write_text(
        f'set -x\nN=${{NNODES:-2}}\nTP=$((2 * N))\nfor M in a b; do echo $M; done\npython3 {words} "$@"\n'
    )
    (home / "nemo.yaml").write_text(NEMO)
    (home / "easyr1.sh").write_text(f'set -x\npython3 {" ".join(EASYR1)} "$@"\n')
    (home / "orlhf.sh").write_text("set -x\nray job submit -- python3 " + " ".join(OPENRLHF) + "\n")
    given = [
        ("verl", "verl.sh", "text"),
        ("nemo-rl", "nemo.yaml", "yaml"),
        ("openrlhf", "orlhf.sh", "text"),
        ("easyr1", "easyr1.sh", "text"),
    ]
    for framework, pattern, kind in (
        ("verl", "configs/verl/*.sh", "text"), ("openrlhf", "configs/openrlhf/*.sh", "text"),
        ("nemo-rl", "configs/nemo-rl/grpo*.yaml", "text"),
    ):  # fmt: skip
        for path in sorted(PUBLISHED.glob(pattern)):
            shutil.copy(path, home / path.name)
            given.append((framework, path.name, kind))
    for framework, name, kind in given:
        yield Seed("config", name, kind, (
            f"check {framework} {name} {GPU}", f"import {framework} {name} {GPU} --out j.yaml --plan p.yaml",
            f"import {framework} {name} {GPU} --json", f"check {name} {GPU} --json",
        ))  # fmt: skip


def _models(home):
    families = json.loads((ROOT / "tests" / "profiles" / "family_configs.json").read_text())
    for name, config in families.items():
        folder = home / "models" / name.split("/")[1]
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1))
        path = f"models/{folder.name}"
        started = f"init new.yaml --algorithm grpo --model {path} --gpu h100 --gpus"
        yield Seed("model", f"{path}/config.json", "json", (
            f"{started} 8", f"{started} 64 --json", f"check verl verl.sh {GPU} --model {path}",
            f"import verl verl.sh {GPU} --model {path}", f"fit --model {path} --gpus 16xh100 --framework verl-fsdp --json",
        ))  # fmt: skip


def _tables(home):
    (home / "a100").mkdir()
    for path in [*sorted(HELD.glob("*.csv")), *sorted(PUBLISHED.glob("ops/a100/*.csv"))]:
        name = f"a100/{path.name}"
        head, *rows = csv.reader(io.StringIO(path.read_text()))
        with (home / name).open("w", newline="") as stream:
            csv.writer(stream).writerows([head, *rows[:3]])
        yield Seed("table", name, "table", (
            f"accuracy {name}", f"accuracy {name} --json", f"accuracy {name} --rows r.csv", f"accuracy {name} --report r",
            f"calibrate {name} --out s.yaml",
        ))  # fmt: skip


def _sheets(home):
    """Write a device's sheet, and a job that names it and says its models inline."""
    device, model = (
        yaml.safe_load(_sheet_text(folder, name))
        for folder, name in (("devices", "a100-80gb-sxm"), ("models", "llama-2-7b"))
    )
    write_yaml(home / "my-device.yaml", device | {"name": "my-device"})
    job = yaml.safe_load((home / "ppo-7b-16xa100.yaml").read_text())
    job["models"] = {role: dict(model) for role in job["models"]}
    job["cluster"][0]["gpu"] = "my-device.yaml"
    write_yaml(home / "sheets.yaml", job)
    for name in ("my-device.yaml", "sheets.yaml"):
        yield Seed(
            "sheet",
            name,
            "yaml",
            ("search sheets.yaml --seconds 1", "check sheets.yaml", "check sheets.yaml --json"),
        )


def _sheet_text(folder, name):
    texts = (path.read_text() for path in (ROOT / "profiles" / folder).glob("*.yaml"))
    return next(text for text in texts if f"name: {name}\n" in text)
