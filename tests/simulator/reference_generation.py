"""Generation token by token: slow, obvious, and written without looking at how jumps are made."""

from dataclasses import dataclass, field

from rlplan.simulator.generation.replica import Chunks, Replica


@dataclass
class Sequence:
    number: int
    prompt: int
    response: int
    done: int = 0
    cached: int = 0
    prefilled: bool = False


@dataclass
class Outcome:
    seconds: float = 0.0
    steps: int = 0
    preemptions: int = 0
    peak_running: int = 0
    peak_blocks: int = 0
    # Tokens computed in each mixed step, by sequence.
    scheduled: list[dict[int, int]] = field(default_factory=list)
    finish: dict[int, float] = field(default_factory=dict)


def blocks(tokens, size):
    return (tokens + size - 1) // size


def continuous(replica: Replica, prompts, responses) -> Outcome:  # noqa: C901, PLR0915 - read top to bottom
    """Admit, prefill, decode one token each, preempt the latest when blocks run out."""
    outcome = Outcome()
    size = replica.block_tokens
    longest = max(blocks(p + r - 1, size) for p, r in zip(prompts, responses, strict=True))
    capacity = max(replica.kv_blocks, longest)
    waiting = [Sequence(i, p, r) for i, (p, r) in enumerate(zip(prompts, responses, strict=True))]
    running: list[Sequence] = []

    def held():
        return sum(blocks(each.cached, size) for each in running)

    def retire():
        for each in [each for each in running if each.done == each.response]:
            running.remove(each)
            outcome.finish[each.number] = outcome.seconds

    while waiting or running:
        admitted = []
        while waiting and len(running) < replica.max_running:
            head = waiting[0]
            if held() + blocks(head.prompt + head.done, size) > capacity:
                break
            head.cached = head.prompt + head.done
            first = head.number % replica.prompt_samples == 0 or head.done > 0
            known = 0 if first else (head.prompt - 1) // size * size
            running.append(waiting.pop(0))
            admitted.append((head, known))
        if admitted:
            outcome.seconds += prefill(replica, [(each.cached, known) for each, known in admitted])
            for each, _ in admitted:
                each.done += 1
        else:
            position = 0
            while position < len(running):
                one = running[position]
                if one.cached % size == 0 and held_with_grown(running, position, size) >= capacity:
                    victim = running.pop()
                    waiting.insert(0, victim)
                    outcome.preemptions += 1
                    continue
                position += 1
            mean = sum(each.cached for each in running) / len(running)
            outcome.seconds += replica.decode_seconds(len(running), mean)
            outcome.steps += 1
            for each in running:
                each.cached += 1
                each.done += 1
        outcome.peak_running = max(outcome.peak_running, len(running))
        outcome.peak_blocks = max(outcome.peak_blocks, held())
        retire()
    return outcome


def held_with_grown(running, position, size):
    """Count blocks when those before `position` have already taken the block of their next token."""
    return sum(
        blocks(each.cached + (1 if index < position else 0), size)
        for index, each in enumerate(running)
    )


def prefill(replica: Replica, prompts) -> float:
    """Take pairs of a prompt's tokens and those of them that lie in the cache, in passes."""
    seconds, batch = 0.0, []
    for whole, known in prompts:
        new = sum(each - own for each, own in batch)
        if batch and new + whole - known > replica.max_batched_tokens:
            seconds += prefill_pass(replica, batch)
            batch = []
        batch.append((whole, known))
    return seconds + prefill_pass(replica, batch)


def prefill_pass(replica: Replica, batch) -> float:
    count, new = len(batch), sum(whole - known for whole, known in batch)
    if not any(known for _, known in batch):
        return replica.prefill_seconds(count, new / count)
    # Each new token sees what lies in the cache and half of the new ones of its prompt.
    pairs = sum((whole - known) * (known + (whole - known) / 2) for whole, known in batch)
    return replica.mixed_seconds(0, 0.0, Chunks(count, new / count, pairs / new - new / count / 2))


def waves(replica: Replica, prompts, responses) -> Outcome:
    """Run padded waves until their longest response ends, one pass a token."""
    outcome = Outcome()
    size = replica.block_tokens
    slots = replica.max_running
    if replica.batching == "static":
        need = blocks(max(prompts) + max(responses) - 1, size)
        slots = min(slots, max(replica.kv_blocks, need) // need)
    for first in range(0, len(prompts), slots):
        members = range(first, min(first + slots, len(prompts)))
        tokens = max(prompts[i] for i in members)
        for token in range(max(responses[i] for i in members)):
            if replica.batching == "none":
                outcome.seconds += replica.prefill_seconds(len(members), tokens + token)
                outcome.steps += 1
            elif token == 0:
                outcome.seconds += prefill(replica, [(tokens, 0)] * len(members))
            else:
                outcome.seconds += replica.decode_seconds(len(members), tokens + token - 1)
                outcome.steps += 1
        for i in members:
            outcome.finish[i] = outcome.seconds
    return outcome


def calls(replica: Replica, prompts, responses) -> Outcome:
    """Hand over a call, wait for all of it, hand over the next."""
    outcome = Outcome()
    for first in range(0, len(prompts), replica.max_running):
        members = list(range(len(prompts)))[first : first + replica.max_running]
        one = continuous(replica, [prompts[i] for i in members], [responses[i] for i in members])
        for place, number in enumerate(members):
            outcome.finish[number] = outcome.seconds + one.finish[place]
        outcome.seconds += one.seconds
        outcome.steps += one.steps
        outcome.preemptions += one.preemptions
        outcome.peak_running = max(outcome.peak_running, one.peak_running)
        outcome.peak_blocks = max(outcome.peak_blocks, one.peak_blocks)
    return outcome


def mixed(replica: Replica, prompts, responses) -> Outcome:  # noqa: C901, PLR0912, PLR0915 - read top to bottom
    """Schedule every step anew: first who runs, in order of admission, then who waits."""
    outcome = Outcome()
    size = replica.block_tokens
    longest = max(blocks(p + r - 1, size) for p, r in zip(prompts, responses, strict=True))
    capacity = max(replica.kv_blocks, longest)
    waiting = [Sequence(i, p, r) for i, (p, r) in enumerate(zip(prompts, responses, strict=True))]
    running: list[Sequence] = []

    def held(one):
        if replica.reserves_whole:
            return blocks(one.prompt + one.response - 1, size)
        return blocks(one.cached, size)

    while waiting or running:
        budget = replica.max_batched_tokens
        decoding: list[Sequence] = []
        chunks: list[tuple[Sequence, int, int]] = []  # sequence, computed before, tokens
        preempted = False
        position = 0
        while position < len(running):
            one = running[position]
            before = one.cached
            # A sequence whose prompt is computed has one token more than its cache holds.
            missing = one.prompt + one.done - before
            tokens = min(missing, budget)
            one.cached = before + tokens
            while sum(map(held, running)) > capacity:
                victim = running.pop()
                victim.cached, victim.prefilled = 0, False
                waiting.insert(0, victim)
                outcome.preemptions += 1
                preempted = True
            if one in running:
                budget -= tokens
                if one.prefilled:
                    decoding.append(one)
                elif tokens:
                    chunks.append((one, before, tokens))
            position += 1
        whole = len(running) == len(decoding) == 0
        while waiting and not preempted and len(running) < replica.max_running and budget > 0:
            head = waiting[0]
            total = head.prompt + head.done
            first = head.number % replica.prompt_samples == 0 or head.done > 0
            before = 0 if first else (head.prompt - 1) // size * size
            if total - before > budget and not replica.chunked_prefill and not whole:
                break
            tokens = total - before
            tokens = tokens if not replica.chunked_prefill else min(tokens, budget)
            head.cached = total
            if sum(map(held, running)) + held(head) > capacity:
                head.cached = 0
                break
            head.cached = before + tokens
            running.append(waiting.pop(0))
            chunks.append((head, before, tokens))
            budget -= tokens
            whole = False
            if head.cached < total:
                break
        mean = sum(one.cached - 1 for one in decoding) / len(decoding) if decoding else 0.0
        if chunks:
            count, tokens = len(chunks), sum(chunk[2] for chunk in chunks)
            pairs = sum(now * (before + now / 2) for _, before, now in chunks)
            shape = Chunks(count, tokens / count, pairs / tokens - tokens / count / 2)
            outcome.seconds += replica.mixed_seconds(len(decoding), mean, shape)
        else:
            outcome.seconds += replica.decode_seconds(len(decoding), mean)
        outcome.steps += 1
        outcome.scheduled.append(
            {one.number: 1 for one in decoding} | {one.number: now for one, _, now in chunks}
        )
        for one in [*decoding, *(chunk[0] for chunk in chunks)]:
            if one.cached == one.prompt + one.done:
                one.done += 1
                one.prefilled = True
        outcome.peak_running = max(outcome.peak_running, len(running))
        outcome.peak_blocks = max(outcome.peak_blocks, sum(map(held, running)))
        for one in [one for one in running if one.done == one.response]:
            running.remove(one)
            outcome.finish[one.number] = outcome.seconds
    return outcome
