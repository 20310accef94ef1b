"""Generation in static waves, with a KV cache or without one."""

from functools import partial
from itertools import islice

from simulator.generation.replica import Generated, Replica, blocks_of, prefill_passes, run_seconds


def play_waves(replica: Replica, prompts: list[int], responses: list[int]) -> Generated:
    """Play `static` waves or, without a KV cache, `none`, in seconds."""
    cached = replica.batching == "static"
    longest = max(prompts) + max(responses) - 1
    slot_blocks = blocks_of(longest, replica.block_tokens) + replica.state_blocks if cached else 0
    missing = max(0, slot_blocks - replica.kv_blocks)
    slots = replica.max_running
    if cached:
        slots = min(slots, (replica.kv_blocks + missing) // slot_blocks)
    decode_run = replica.decode_run or partial(run_seconds, replica.decode_seconds)
    prefill_run = replica.prefill_run or partial(run_seconds, replica.prefill_seconds)
    prefill = decode = 0.0
    num_steps = jumps = begun = 0
    finish: list[float] = []
    pairs = iter(zip(prompts, responses, strict=True))
    while wave := list(islice(pairs, slots)):
        prompt = max(pair[0] for pair in wave)
        response = max(pair[1] for pair in wave)
        if cached:
            steps = response - 1
            count = prompts_between(begun, begun + len(wave), replica.prompt_samples)
            prefill += prefill_passes(replica, [prompt] * count)
            if steps:
                decode += decode_run(len(wave), prompt, steps)
        else:
            steps = response
            decode += prefill_run(len(wave), prompt, steps)
        begun += len(wave)
        num_steps += steps
        jumps += 1
        finish += [prefill + decode] * len(wave)
    width = min(slots, len(prompts))
    return Generated(
        seconds=prefill + decode,
        prefill_seconds=prefill,
        decode_seconds=decode,
        num_steps=num_steps,
        num_jumps=jumps,
        peak_running=width,
        peak_blocks=width * slot_blocks,
        missing_blocks=missing,
        finish_seconds=tuple(finish),
    )


def prompts_between(first: int, last: int, samples: int) -> int:
    """Return the prompts of the sequences from the first to before the last, `samples` to a prompt."""
    return -(-last // samples) - first // samples


def most_prompts(sequences: int, samples: int) -> int:
    """Return the most prompts of so many sequences in a row, where waves may cut a prompt's samples."""
    if sequences % samples == 0:
        return sequences // samples
    return (sequences - 2) // samples + 2
