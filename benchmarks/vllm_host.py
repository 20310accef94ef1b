"""Measure what vLLM's own Python takes of a decode step, in processor seconds, without a model.

    PYTHONPATH=. .venv-vllm/bin/python benchmarks/vllm_host.py [TOKENIZER_JSON]

Drives its scheduler and its output processor in one process, as RL frameworks do that hand it prompts as tokens, and
prints microseconds for each running sequence (the slope between 16 and 256) with and without log-probabilities of the
sampled token; with a tokenizer also where it turns tokens into text. Nothing of a kernel is in it, nor of what brings inputs
to a device.
"""

import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request

from tests.vllm.scheduler_alone import END_TOKEN, WORD_TOKEN, Case, build, write_tiny_model

PROMPT, LONGEST, WARM_UP, STEPS = 128, 3000, 10, 150
FEW, MANY = 16, 256
PARTS = ("schedule", "update", "outputs")


def main(tokenizer: str | None) -> None:
    """Print microseconds a running sequence, by part."""
    texts = None if tokenizer is None else PreTrainedTokenizerFast(tokenizer_file=tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder))
        for text, log_probs in product([None] if texts is None else [None, texts], (False, True)):
            few, many = (seconds_of_parts(model, n, text, log_probs) for n in (FEW, MANY))
            told = ", ".join(
                f"{part} {(many[part] - few[part]) / (MANY - FEW) * 1e6:.1f}" for part in PARTS
            )
            print(f"text {text is not None}, log-probabilities {log_probs}: {told}")


def seconds_of_parts(
    model: str, sequences: int, texts: PreTrainedTokenizerFast | None, log_probs: bool
) -> dict[str, float]:
    """Return processor seconds of a step of so many sequences, by part."""
    case = Case(
        prompts=(PROMPT,) * sequences,
        responses=(LONGEST,) * sequences,
        kv_blocks=sequences * 200,
        max_running=MANY,
        max_batched_tokens=200_000,
        max_model_tokens=4096,
    )
    scheduler, outputs = build(model, case), OutputProcessor(texts, log_stats=False)
    for number in range(sequences):
        params = SamplingParams(
            max_tokens=LONGEST,
            ignore_eos=True,
            logprobs=0 if log_probs else None,
            detokenize=texts is not None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        params.update_from_generation_config({}, END_TOKEN)
        asked = {"prompt_token_ids": [WORD_TOKEN] * PROMPT, "sampling_params": params}
        name = f"request-{number}"
        scheduler.add_request(Request(request_id=name, pooling_params=None, **asked))
        nothing = dict.fromkeys(
            ("mm_features", "pooling_params", "lora_request", "cache_salt", "data_parallel_rank")
        )
        one = EngineCoreRequest(request_id=name, arrival_time=0.0, external_req_id=name, **asked, **nothing)  # fmt: skip
        outputs.add_request(one, None)
    words = np.random.default_rng(0).integers(100, 900, size=(WARM_UP + STEPS, sequences))
    found = dict.fromkeys(PARTS, 0.0)
    for step, row in enumerate(words):
        taken = _step(scheduler, outputs, row, log_probs)
        if step >= WARM_UP:
            found = {part: found[part] + taken[part] / STEPS for part in PARTS}
    return found


def _step(
    scheduler: Scheduler, outputs: OutputProcessor, words: NDArray[np.int64], log_probs: bool
) -> dict[str, float]:
    """Carry out one step and return its processor seconds by part."""
    start = time.process_time()
    planned = scheduler.schedule()
    scheduled = time.process_time()
    names = list(planned.num_scheduled_tokens)
    tokens = words[: len(names)]
    ones = np.ones(len(names), np.int32)
    done = ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[[int(word)] for word in tokens],
        logprobs=LogprobsLists(tokens[:, None].astype(np.int32), -ones[:, None] / 2, ones)
        if log_probs
        else None,
        pooler_output=[],
    )
    made = time.process_time()
    core = scheduler.update_from_output(planned, done)
    updated = time.process_time()
    outputs.process_outputs(core[0].outputs)
    ended = time.process_time()
    return {
        "schedule": scheduled - start,
        "update": updated - made,
        "outputs": ended - updated,
    }


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
