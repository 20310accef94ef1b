"""The job on which `executor_vs_trl.py` compares: model, prompts, tokenizer, plan, TRL's words for it."""

import json
import random
import string
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlplan.files.frozen import FrozenDict
from rlplan.job import RANDOM, Hyperparameters, Job, NodeGroup, Rewards
from rlplan.models import ModelArchitecture
from rlplan.parts import num_parameters
from rlplan.plan import Plan
from rlplan.planner.search import search
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.workload import Workload

MODEL = ModelArchitecture(
    name="llama-256x4",
    family="llama",
    hidden_size=256,
    num_layers=4,
    num_heads=8,
    num_kv_heads=8,
    head_dim=32,
    ffn_size=688,  # 8/3 of the hidden size, as in Llama, up to a multiple of 16
    vocab_size=260,
    max_positions=512,
)
PROMPTS, SAMPLES, PROMPT_TOKENS, RESPONSE_TOKENS = 16, 4, 16, 64
BOS, BEYOND_VOCABULARY = 257, 300
KL_COEFFICIENT, LEARNING_RATE = 0.01, 1e-6
DATA_BATCHES = 4


def planned(algorithm: str, folder: Path, cores: int) -> Plan:
    """Return the plan that the search chooses for the compared job on that many cores."""
    roles = (
        ("actor", "reference")
        if algorithm == "grpo"
        else ("actor", "critic", "reference", "reward")
    )
    grouped = {"prompts": PROMPTS, "samples_per_prompt": SAMPLES}
    work = grouped if algorithm == "grpo" else {"prompts": PROMPTS * SAMPLES}
    rewards = None
    if algorithm == "grpo":
        rewards = Rewards(function="digits", function_seconds_per_sample=1e-5)
    job = Job(
        name=f"trl-{algorithm}",
        algorithm=algorithm,
        models=FrozenDict(dict.fromkeys(roles, MODEL)),
        weights=RANDOM,
        workload=Workload(**work, prompt_tokens=PROMPT_TOKENS, response_tokens=RESPONSE_TOKENS),
        cluster=(NodeGroup(gpu="cpu", gpus_per_node=cores),),
        rewards=rewards,
        hyperparameters=Hyperparameters(
            learning_rate=LEARNING_RATE,
            critic_learning_rate=LEARNING_RATE,
            kl_coefficient=KL_COEFFICIENT,
        ),
        prompts_file="prompts.jsonl",
        tokenizer="tokenizer",
    )
    job = resolve_job(job, folder)
    return search(job, load_facts(job)).plans[0].plan


def product_flops(algorithm: str) -> float:
    """Return the floating point operations of an iteration's matrix products, attention's left out.

    Two for each weight of a matrix and token in a forward pass, and twice that again in a backward
    pass. What samples of a prompt share is computed once.
    """
    forwards, updates = (1, 1) if algorithm == "grpo" else (3, 2)
    sharing = SAMPLES if algorithm == "grpo" else 1
    rows, prompts = PROMPTS * SAMPLES, PROMPTS * SAMPLES // sharing
    generated = prompts * PROMPT_TOKENS + rows * (RESPONSE_TOKENS - 1)
    packed = prompts * (PROMPT_TOKENS - 1) + rows * (RESPONSE_TOKENS + 1)
    weights = num_parameters(MODEL, "lm") - MODEL.vocab_size * MODEL.hidden_size
    return 2.0 * weights * (generated + packed * (forwards + 3 * updates))


def write_prompts(
    folder: Path,
    count: int = DATA_BATCHES * PROMPTS * SAMPLES,
    tokens: int = PROMPT_TOKENS,
) -> list[str]:
    """Write prompts of one length, some batches of them; return their texts."""
    drawn = random.Random(0)
    texts = ["".join(drawn.choices(string.ascii_lowercase, k=tokens)) for _ in range(count)]
    lines = [json.dumps({"prompt": text}) + "\n" for text in texts]
    (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    return texts


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of single characters, whose end token no model of 260 ids can say."""
    vocabulary = {chr(index): index for index in range(256)}
    vocabulary |= {"<s>": BOS, "</s>": BEYOND_VOCABULARY}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))  # noqa: S106 -- no password
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    wrapped.save_pretrained(folder)


def trl_setting(job: Job, texts: list[str], folder: Path, cores: int) -> dict[str, Any]:
    """Return a job in the words of `trl_side.py`."""
    work = job.workload
    return {
        "algorithm": job.algorithm,
        "prompts": work.prompts,
        "samples_per_prompt": work.samples_per_prompt,
        "response_tokens": RESPONSE_TOKENS,
        "epochs": work.epochs,
        "kl_coefficient": KL_COEFFICIENT,
        "learning_rate": LEARNING_RATE,
        "texts": texts,
        "tokenizer": str(folder / "tokenizer"),
        "threads": cores,
        "max_iterations": 10**6,
        "model": {
            "hidden_size": MODEL.hidden_size,
            "num_hidden_layers": MODEL.num_layers,
            "num_attention_heads": MODEL.num_heads,
            "num_key_value_heads": MODEL.num_kv_heads,
            "head_dim": MODEL.head_dim,
            "intermediate_size": MODEL.ffn_size,
            "vocab_size": MODEL.vocab_size,
            "max_position_embeddings": MODEL.max_positions,
        },
    }
