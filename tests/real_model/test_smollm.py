"""A real pre-trained model: answered as by `transformers`, trained in two layouts, exported and loaded again."""

import json
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlplan.executor.control.run import Saving
from rlplan.executor.execute import execute
from rlplan.executor.parallel.meshes import make_mesh
from rlplan.executor.parallel.positions import task_positions
from rlplan.executor.passes import infer
from rlplan.executor.rollout.engines.torch_static import TorchStaticEngine
from rlplan.executor.rollout.sampling import GenerateSettings
from rlplan.executor.weights.shard import build_shard
from rlplan.files.frozen import FrozenDict
from rlplan.job import Hyperparameters, Job, NodeGroup, PromptData, Rewards
from rlplan.models import Adapter
from rlplan.plan import TaskPlan
from rlplan.profiles.jobs.config.reading import read_hf_config
from rlplan.profiles.jobs.resolve import resolve_job
from rlplan.workload import Uniform, Workload
from tests.executor.plans import make_plan

pytestmark = [pytest.mark.ray, pytest.mark.full]

QUESTIONS = ("What is 3 + 4?", "What is the capital of France?", "Name three colours.")
NEW = 12
LAYOUTS = {
    "one": (1, {}),
    "tp 3": (3, {"tp": 3}),
    "pp 2": (2, {"pp": 2}),
    "fully sharded": (2, {"zero": 3}),
    "tp 3, sequences cut": (3, {"tp": 3, "engine": "torch-3d-sp"}),
    "cp 2": (2, {"cp": 2}),
}


@pytest.fixture(scope="module")
def theirs(smollm):
    """Return what `transformers` has: tokens of questions and greedy answers, their log-probabilities, the texts."""
    tokenizer = AutoTokenizer.from_pretrained(smollm)
    model = AutoModelForCausalLM.from_pretrained(smollm, dtype=torch.float32).eval()
    rows = []
    for question in QUESTIONS:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt",
            return_dict=True,
        )  # fmt: skip
        with torch.no_grad():
            made = model.generate(**prompt, max_new_tokens=NEW, do_sample=False)
            log_probs = model(made).logits[0, :-1].log_softmax(-1)
        chosen = log_probs.gather(1, made[0, 1:, None])[:, 0]
        rows.append((prompt["input_ids"][0], made[0], chosen))
    return rows, [tokenizer.decode(made[len(prompt) :]) for prompt, made, _ in rows]


def test_the_model_answers_a_sum(theirs):
    assert "7" in theirs[1][0]


def padded(rows):
    """Return (tokens, parts) of questions and answers, questions padded on the left."""
    widest = max(len(prompt) for prompt, _, _ in rows)
    tokens = torch.zeros(len(rows), widest + NEW, dtype=torch.int64)
    parts = torch.zeros(tokens.shape, dtype=torch.int8)
    for row, (prompt, made, _) in enumerate(rows):
        first = widest - len(prompt)
        tokens[row, first : first + len(made)] = made
        parts[row, first:widest] = 1
        parts[row, widest : first + len(made)] = 2
    return tokens, parts, widest


def in_layout(rank, ranks, settings, folder, tokens, parts, widest):
    """Return a rank's log-probabilities of the rows it has; and where it is alone its greedy answers."""
    layout = TaskPlan(pool="p0", micro_batch=3, **settings)
    mesh = make_mesh(task_positions(layout, ranks), rank, torch.device("cpu"), layout.ep)
    shard = build_shard(
        read_hf_config(folder), "lm", mesh, role="actor", seed=1, precision="fp32", folder=folder,
        learning_rate=1e-6, layout=layout,
    )  # fmt: skip
    rows = [0, 1, 2] if mesh.dp_size == 1 else [[0, 1], [2, 2]][mesh.dp]
    found = infer(shard, tokens[rows], parts[rows], "log_probs", micro_batch=3, temperature=1.0)
    answers = None
    if "zero" not in settings and "cp" not in settings and "engine" not in settings:
        made = TorchStaticEngine(shard).generate(
            tokens[:, :widest],
            parts[:, :widest] != 0,
            torch.full((3,), NEW),
            torch.arange(3),
            NEW,
            GenerateSettings(
                temperature=1.0, end_ids=(), max_running=3, greedy=True, seed=0, iteration=0
            ),
        )
        answers = made.tokens[:, widest:].tolist()
    return mesh.leads, rows, None if found is None else found.numpy(), answers


@pytest.mark.parametrize("layout", LAYOUTS)
def test_log_probabilities_and_greedy_answers_are_those_of_transformers(
    layout, theirs, smollm, worker_pool
):
    rows, _ = theirs
    tokens, parts, widest = padded(rows)
    ranks, settings = LAYOUTS[layout]
    job = partial(
        in_layout, settings=settings, folder=smollm, tokens=tokens, parts=parts, widest=widest
    )
    for leads, mine, found, answers in worker_pool.on_ranks(ranks, job):
        if answers is not None:
            for answer, (prompt, made, _) in zip(answers, rows, strict=True):
                expected = made[len(prompt) :].tolist()
                assert answer[: len(expected)] == expected
        if not leads:
            continue
        for at, row in enumerate(mine):
            prompt, _, chosen = rows[row]
            first = widest - len(prompt) + 1
            here = torch.tensor(found[at, first : first + len(chosen)])
            torch.testing.assert_close(here, chosen, rtol=0, atol=1e-4)


def job_of(smollm, folder, **changes):
    """Return a job of short sums on the model."""
    lines = [
        json.dumps(
            {"prompt": f"What is {a} + {b}? Answer with the number only.", "answer": f"{a + b}"}
        )
        for a in range(10, 14)
        for b in range(20, 24)
    ]
    (folder / "sums.jsonl").write_text("\n".join(lines) + "\n")
    job = Job(
        name="sums",
        algorithm="grpo",
        models=FrozenDict(dict.fromkeys(("actor", "reference"), str(smollm))),
        tokenizer=str(smollm),
        workload=Workload(
            prompts=4,
            samples_per_prompt=4,
            prompt_tokens=Uniform(low=40, high=48),
            response_tokens=Uniform(low=4, high=12),
        ),
        cluster=(NodeGroup(gpu="cpu", gpus_per_node=2),),
        rewards=Rewards(function="digits"),
        hyperparameters=Hyperparameters(learning_rate=1e-5, kl_coefficient=0.001),
        prompts_file="sums.jsonl",
        prompt_data=PromptData(chat=True),
        **changes,
    )
    return resolve_job(job, folder)


@pytest.mark.parametrize("sizes", [{"zero": 3}, {"pp": 2}])
def test_it_is_trained_exported_and_loaded_again(sizes, smollm, tmp_path, shared_workers):
    plan = make_plan(job_of(smollm, tmp_path), {"p0": (2, ("actor", "reference"))}, **sizes)
    saving = Saving(export=tmp_path / "out")
    execute(plan, tmp_path / "run", iterations=2, seed=1, warmup=1, saving=saving)
    started, ended = (
        load_file(smollm / "model.safetensors"),
        load_file(tmp_path / "out" / "model.safetensors"),
    )
    assert started.keys() == ended.keys()
    for name, values in started.items():
        moved = (ended[name] - values.float()).abs().max()
        assert moved <= 2 * 1.01e-5 + 1e-7, name  # two steps of Adam
    assert any(not torch.equal(ended[name], values.float()) for name, values in started.items())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTIONS[0]}], add_generation_prompt=True, return_tensors="pt",
        return_dict=True,
    )  # fmt: skip
    said = tokenizer.decode(model.generate(**prompt, max_new_tokens=NEW, do_sample=False)[0])
    assert "7" in said.split("assistant")[-1]


def test_adapters_of_it_are_trained_and_loaded_by_peft(smollm, tmp_path, shared_workers):
    from peft import PeftModel

    adapters = FrozenDict({"actor": Adapter(rank=4, sync="merged")})
    job = job_of(smollm, tmp_path, adapters=adapters)
    plan = make_plan(job, {"p0": (2, ("actor",))})
    saving = Saving(export=tmp_path / "out")
    execute(plan, tmp_path / "run", iterations=1, seed=1, warmup=0, saving=saving)
    base = AutoModelForCausalLM.from_pretrained(smollm, dtype=torch.float32)
    tokens = torch.arange(20, 40)[None]
    with torch.no_grad():
        before = base(tokens).logits.clone()
        after = PeftModel.from_pretrained(base, tmp_path / "out").eval()(tokens).logits
    assert 0 < (after - before).abs().max() < 5
