"""What workers measure for profiles: a fixed loop, and passes and steps as a job has them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import ray
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import BYTES_PER_SAMPLE, Task, tasks_of
from rlplan.executor.data.batches import BASELINE, PADDING, PROMPT, RESPONSE
from rlplan.executor.learning.experience import Batch, effective_settings, make_experience
from rlplan.executor.learning.losses import load_loss
from rlplan.executor.learning.multiplier import initial_state
from rlplan.executor.learning.train import response_tokens, run_micro_batches, split_micro_batches
from rlplan.executor.parallel.meshes import RankMesh, ReduceSum, reduce_sum_over_dp, wait_for_device
from rlplan.executor.parallel.positions import train_positions
from rlplan.executor.passes import infer
from rlplan.executor.rollout.engines.torch_static import Wave
from rlplan.executor.rollout.sampling import GenerateSettings, Sequences, uniform_numbers
from rlplan.executor.weights.flat import FlatParameters
from rlplan.executor.weights.shard import ModelShard, build_shard, freeze_collector
from rlplan.executor.weights.transition import Part, write_shard
from rlplan.job import Hyperparameters, Job
from rlplan.models import Head
from rlplan.parts import num_parameters
from rlplan.probing import GENERATION_PASSES, UNEVEN, USUAL, ModelPass
from rlplan.workload import Lengths, Workload, sample_lengths

# Rows of the square matrices: in a core's cache; on a GPU large enough to fill it, and small beside models.
SIZES = {"cpu": 256, "cuda": 2048}
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
# A block is longer than a time slice of the scheduler, so that it shows the share of other processes.
BLOCK_SECONDS = 0.01
BLOCKS = 10
FLOPS_OF_A_PRODUCT = 2


def loop_flops_per_second(device: torch.device) -> float:
    """Return the floating-point operations a second of products of fixed matrices: the median of ten blocks."""
    size = SIZES[device.type]
    matrix = torch.ones(size, size, dtype=DTYPES[device.type], device=device)
    out = torch.empty_like(matrix)
    rates = [_block_rate(matrix, out) for _ in range(1 + BLOCKS)]
    return FLOPS_OF_A_PRODUCT * size**3 * median(rates[1:])  # the first one warms up


def _block_rate(matrix: torch.Tensor, out: torch.Tensor) -> float:
    """Return products a second over a block."""
    count, begin = 0, time.perf_counter()
    while (seconds := time.perf_counter() - begin) < BLOCK_SECONDS:
        torch.mm(matrix, matrix, out=out)
        if matrix.is_cuda:
            torch.cuda.synchronize()
        count += 1
    return count / seconds


# Of each length that stands for a share of a job's.
DRAWS_OF_LENGTH = 16


def half_responses(shape: tuple[int, int]) -> torch.Tensor:
    """Return what stands where in sequences that are half prompt and half response. Shape (B, T)."""
    parts = torch.full(shape, PROMPT, dtype=torch.int8)
    parts[:, shape[1] // 2 :] = RESPONSE
    return parts


def preparation(
    job: Job, head: Head, shape: tuple[int, int], device: torch.device, reduce_sum: ReduceSum
) -> Callable[[], tuple[Batch, dict[str, float]]]:
    """Return what makes an update's experience of rows that are half prompt and half response.

    Args:
        head: Of the model that is updated.
        shape: Rows, and tokens of each.
        reduce_sum: Returns the sum of a tensor over the data-parallel ranks.
    """
    algorithm = load_algorithm(job.algorithm)
    updates = [task for task in tasks_of(algorithm, job) if task.trains]
    task = next(task for task in updates if task.head == head)
    columns = _columns(task, shape, device)
    state = initial_state(algorithm, job)
    return lambda: make_experience(job, algorithm, columns, state, reduce_sum)


def _columns(task: Task, shape: tuple[int, int], device: torch.device) -> dict[str, torch.Tensor]:
    """Return random columns of everything that a task waits for."""
    generator = torch.Generator().manual_seed(0)
    sequences = {"tokens": torch.zeros(shape, dtype=torch.long), "parts": half_responses(shape)}
    columns: dict[str, torch.Tensor] = {}
    for key in task.inputs:
        prefix = BASELINE if key.startswith(BASELINE) else ""
        match key.removeprefix(BASELINE):
            case "sequences":
                columns |= {prefix + name: column for name, column in sequences.items()}
            case "pretrain":
                columns |= {f"pretrain_{name}": column for name, column in sequences.items()}
            case _:
                size = shape[:1] if key in BYTES_PER_SAMPLE else shape
                columns[key] = torch.randn(size, generator=generator)
    return {name: column.to(device) for name, column in columns.items()}


def random_batch(shard: ModelShard, model_pass: ModelPass) -> dict[str, Tensor]:
    """Return a micro-batch of random tokens, half prompt and half response, on the device."""
    shape = (model_pass.sequences, model_pass.tokens)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, model_pass.model.vocab_size, shape, generator=generator)
    return _on_device(shard, tokens, half_responses(shape), generator)


def usual_batch(
    shard: ModelShard, model_pass: ModelPass, workload: Workload, micro_batches: int
) -> dict[str, Tensor]:
    """Return micro-batches as a job has them, on the device: random tokens, so many of a sequence on average.

    Lengths are spread as the job's are over all of them, and neighbouring samples have their prompt in common.
    """
    count, samples = micro_batches * model_pass.sequences, workload.samples_per_prompt
    prompts = spread_lengths(workload.prompt_tokens, -(-count // samples))
    prompts = prompts.repeat_interleave(samples)[:count]
    responses = spread_lengths(workload.response_tokens, count).double()
    left = count * model_pass.tokens - int(prompts.sum())
    responses = (responses * left / responses.sum()).round().long().clamp(min=1)
    generator = torch.Generator().manual_seed(0)
    responses = responses[torch.randperm(count, generator=generator)]
    width = int(prompts.max())
    shape = (count, width + int(responses.max()))
    tokens = torch.randint(0, model_pass.model.vocab_size, shape, generator=generator)
    tokens[:, :width] = tokens[:, :width][torch.arange(count) // samples * samples]
    places = torch.arange(shape[1])
    parts = torch.full(shape, PADDING, dtype=torch.int8)
    parts[(places >= width - prompts[:, None]) & (places < width)] = PROMPT
    parts[(places >= width) & (places < width + responses[:, None])] = RESPONSE
    return _on_device(shard, tokens, parts, generator)


def spread_lengths(lengths: Lengths, count: int) -> Tensor:
    """Return so many lengths in tokens, each in the middle of an equal share of a job's; shape (count,)."""
    drawn = sorted(sample_lengths(lengths, count * DRAWS_OF_LENGTH, seed=0))
    return torch.tensor(drawn[DRAWS_OF_LENGTH // 2 :: DRAWS_OF_LENGTH])


def _on_device(
    shard: ModelShard, tokens: Tensor, parts: Tensor, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return rows with random numbers for all that an update learns from."""
    shape = tokens.shape
    numbers = {
        name: torch.randn(shape, generator=generator).mul_(0.1)
        for name in ("log_probs", "values", "reference_log_probs", "advantages", "returns")
    }
    batch = {"tokens": tokens, "parts": parts, "response_mask": parts == RESPONSE, **numbers}
    return {name: column.to(shard.device) for name, column in batch.items()}


# Models kept between passes, since probes come back to each of them: two heads in a few layouts.
KEPT_SHARDS = 8
WARMUP_RUNS = 2
# How long a rank computes before a pass that starts with its neighbours' data, in seconds of its
# core. Ranks that come from computing take longer to meet than ranks that have just met.
WORK_SECONDS = 0.01
# Decode steps that are timed together, as in a job, where they follow each other: a step of a millisecond takes up to half as
# long again after a barrier of the ranks.
STEPS_TOGETHER = 8
# Steps of a wave before the timed ones. After another pass the caches hold its data: on a CPU the first step takes up to 2.5
# times as long, and the fourth a tenth more. Waves of a job have tens to hundreds of steps.
STEPS_BEFORE = 4
# From this many operations on a core, about a tenth of a second, fewer steps are run before and together, since the state of
# the caches matters less: at least one before, and two together.
LONG_STEP_FLOPS = 5e9
# Lengths of cached prompts in uneven steps: each takes a prefill before them.
UNEVEN_PROMPTS = 8
# A job's micro-batches are as long as their longest sequence; a few of them have its spread together.
MOST_TOGETHER, ROWS_TOGETHER = 4, 64
# Small enough that steps of the optimizer leave weights finite, whatever the number of repeats.
LEARNING_RATE = 1e-6
GRADIENT = 1e-3

Run = Callable[[], Any]


def _no_run() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Timed:
    """Hold what is timed, and how.

    Attributes:
        before: Sets it up again each time, before the ranks meet.
        lead: What the rank does between their meeting and the clock's start.
        passes: Of which it consists.
    """

    run: Run = _no_run
    before: Run = _no_run
    lead: Run = _no_run
    passes: int = 1


class PassBench:
    """Time passes on one rank of a worker group; all ranks are asked for the same pass.

    Args:
        job: Whose experience is made; None where nobody asks for that.
    """

    def __init__(self, rank: int, ranks: int, device: torch.device, job: Job | None = None) -> None:
        self._rank, self._ranks, self._device, self._job = rank, ranks, device, job
        self._meshes: dict[tuple[int, int], RankMesh | None] = {}
        self._shards: dict[tuple[Any, ...], ModelShard] = {}
        self._seen: set[ModelPass] = set()

    def run(self, model_pass: ModelPass, repeats: int) -> tuple[float, ...]:
        """Return the seconds of each repeat; none on a rank that is left over.

        The ranks start each repeat together, so that neighbours are busy with the same.
        """
        shard = None if self._is_idle(model_pass) else self._shard(model_pass)
        timed = Timed() if shard is None else self._prepare(shard, model_pass)
        # In a job a pass follows another one, whose data fill the caches; the same holds for a probe that repeats. Only
        # one-time work (building, first allocations) is warmed up.
        warmups = 0 if model_pass in self._seen else WARMUP_RUNS
        self._seen.add(model_pass)
        seconds = []
        for _ in range(warmups + repeats):
            timed.before()
            self._barrier()
            timed.lead()
            wait_for_device(self._device)
            start = time.perf_counter()
            timed.run()
            wait_for_device(self._device)
            seconds.append((time.perf_counter() - start) / timed.passes)
        return tuple(seconds[warmups:]) if shard is not None else ()

    def _is_idle(self, model_pass: ModelPass) -> bool:
        """Tell whether this rank has nothing to do: other pools wait while one generates."""
        generates = model_pass.name in GENERATION_PASSES
        return generates and self._rank >= model_pass.dp * model_pass.tp

    def export_weights(self, model_pass: ModelPass) -> tuple[list[Any], float]:
        """Put the shard's weights into the object store; return the reference and when it began."""
        shard = self._shard(model_pass)
        start = time.monotonic()
        if shard is None:
            return [], start
        values = _flat(shard).values.detach().cpu().numpy()
        return [ray.put({"flat": values, "entries": shard.flat.entries})], start

    def import_weights(self, model_pass: ModelPass, holder: list[Any]) -> float:
        """Write the shard from another rank's weights; return when it was done."""
        shard = self._shard(model_pass)
        if shard is not None:
            held = ray.get(holder[0])
            flat = torch.tensor(held["flat"], device=self._device)
            with torch.no_grad():
                mine = Part(shard.flat.entries, _flat(shard).values)
                write_shard(mine, Part(held["entries"], flat))
            wait_for_device(self._device)
        return time.monotonic()

    def _prepare(self, shard: ModelShard, model_pass: ModelPass) -> Timed:
        if model_pass.name in GENERATION_PASSES:
            return _generation(shard, model_pass, self._longest)
        trainer = shard.trainer
        assert trainer is not None, "probes build shards that are trained"
        if model_pass.name == "optimizer":
            gradients = _flat(shard).gradients
            assert gradients is not None
            norm = Hyperparameters().max_gradient_norm
            return Timed(
                lambda: trainer.clip_and_step(norm).item(), lambda: gradients.fill_(GRADIENT)
            )
        if model_pass.name == "gradient_reduction":
            return Timed(trainer.reduce_gradients, lead=work_a_while)
        if model_pass.name == "experience":
            assert self._job is not None, "experience is made for a job"
            shape = (model_pass.sequences, model_pass.tokens)
            reduce_sum = reduce_sum_over_dp(shard.mesh)
            make = preparation(self._job, model_pass.head, shape, self._device, reduce_sum)
            return Timed(lambda: response_tokens(shard, [make()[0]]), lead=work_a_while)
        batch, passes = self._batch(shard, model_pass)
        if model_pass.name.startswith("infer"):
            output = "log_probs" if model_pass.head == "lm" else "values"
            return Timed(
                lambda: infer(
                    shard,
                    batch["tokens"],
                    batch["parts"],
                    output,
                    micro_batch=model_pass.sequences,
                    temperature=1.0,
                ),
                passes=passes,
            )
        assert model_pass.name.startswith("train"), model_pass.name
        loss = load_loss("ppo_policy" if model_pass.head == "lm" else "value")
        settings = effective_settings(load_algorithm("ppo"), Hyperparameters())
        tokens = batch["response_mask"].sum().float()

        def learn() -> None:
            parts = split_micro_batches(shard, batch, model_pass.sequences)
            run_micro_batches(shard, parts, loss, settings, tokens)

        return Timed(learn, passes=passes)

    def _batch(
        self, shard: ModelShard, model_pass: ModelPass
    ) -> tuple[dict[str, torch.Tensor], int]:
        """Return what a pass computes, and how many micro-batches that is."""
        if model_pass.name not in USUAL.values():
            return random_batch(shard, model_pass), 1
        assert self._job is not None, "its micro-batches are a job's"
        count = min(MOST_TOGETHER, max(1, ROWS_TOGETHER // model_pass.sequences))
        return usual_batch(shard, model_pass, self._job.workload, count), count

    @property
    def _longest(self) -> int:
        """Return the tokens of a job's longest sequence; 0 where none is known."""
        return self._job.workload.longest_sequence_tokens if self._job is not None else 0

    def _shard(self, model_pass: ModelPass) -> ModelShard | None:
        mesh = self._mesh(model_pass.dp, model_pass.tp)
        if mesh is None:
            return None
        key = (
            model_pass.model,
            model_pass.head,
            model_pass.precision,
            model_pass.dp,
            model_pass.tp,
        )
        if key not in self._shards:
            while len(self._shards) >= KEPT_SHARDS:
                self._shards.pop(next(iter(self._shards)))
            self._shards[key] = build_shard(
                model_pass.model,
                model_pass.head,
                mesh,
                role="actor" if model_pass.head == "lm" else "critic",
                seed=0,
                precision=model_pass.precision,
                learning_rate=LEARNING_RATE,
            )
            freeze_collector()
        return self._shards[key]

    def _mesh(self, dp: int, tp: int) -> RankMesh | None:
        """Return this rank's mesh in one of as many copies of the layout as there is room for."""
        if (dp, tp) not in self._meshes:
            copies, inside = self._ranks // (dp * tp), self._rank % (dp * tp)
            mesh = None
            if dp * tp > 1:
                grid = torch.arange(copies * dp * tp).view(copies, dp, tp)
                mesh = DeviceMesh(self._device.type, grid, mesh_dim_names=("bench", "copies", "tp"))
            member = self._rank < copies * dp * tp
            here = mesh["copies", "tp"] if mesh is not None and member else None
            positions = train_positions(tp, dp * tp)
            made = RankMesh(positions, inside, self._device, here) if member else None
            self._meshes[dp, tp] = made
        return self._meshes[dp, tp]

    def _barrier(self) -> None:
        if self._ranks > 1:
            dist.barrier()


def _flat(shard: ModelShard) -> FlatParameters:
    assert isinstance(shard.flat, FlatParameters), "probes shard nothing over data-parallel ranks"
    return shard.flat


def work_a_while() -> None:
    """Compute for `WORK_SECONDS` of this thread's time."""
    until = time.thread_time() + WORK_SECONDS
    while time.thread_time() < until:
        pass


def steps_of(model_pass: ModelPass, device: str) -> tuple[int, int]:
    """Return the decode steps before those that are timed, and how many of these there are; of all ranks the same."""
    flops = 2.0 * num_parameters(model_pass.model, model_pass.head) * model_pass.sequences
    share = 1.0 if device != "cpu" else min(1.0, LONG_STEP_FLOPS * model_pass.tp / flops)
    return max(1, round(STEPS_BEFORE * share)), max(2, round(STEPS_TOGETHER * share))


def _generation(shard: ModelShard, model_pass: ModelPass, longest: int) -> Timed:
    """Return a prefill, or some decode steps one after another, the first timed after `tokens` cached ones.

    Args:
        longest: Tokens for which the cache has room at the least, as in a job: what lies between
            sequences takes part of a step's time.
    """
    rows, prompt = model_pass.sequences, model_pass.tokens
    prefills = model_pass.name.startswith("prefill")
    before, together = steps_of(model_pass, shard.device.type)
    if not prefills:
        prompt = max(1, prompt - before)
    tokens = random_batch(shard, replace(model_pass, tokens=prompt))["tokens"]
    if not prefills:  # one prompt fills all caches: what is in them costs nothing, and its prefill as much as 50 steps
        tokens = tokens[:1].expand(rows, -1)
    room = max(before + together + 1, longest - prompt)
    tokens = F.pad(tokens, (0, room))
    parts = torch.full_like(tokens, PROMPT, dtype=torch.int8)
    parts[:, prompt:] = PADDING
    if model_pass.name in UNEVEN.values():  # from the first row, which is full, down to one token
        kinds = rows if prefills else min(rows, UNEVEN_PROMPTS)
        kind = torch.arange(rows, device=shard.device) * kinds // rows
        beginnings = kind * (prompt - 1) // max(1, kinds - 1)
        columns = torch.arange(prompt + room, device=shard.device)
        parts[columns < beginnings[:, None]] = PADDING
    sequences = Sequences(tokens, parts, torch.zeros(tokens.shape, device=shard.device))
    settings = GenerateSettings(max_running=rows, temperature=1.0, seed=0, iteration=0, end_ids=())
    lengths = torch.full((rows,), room, device=shard.device)

    def started() -> Wave:
        uniforms = uniform_numbers(torch.arange(rows), room, settings)
        wave = Wave(shard, sequences, lengths, uniforms, prompt, settings)
        with shard.without_gradients(), shard.autocast():
            wave.start()
        return wave

    def start() -> None:
        started()

    if prefills:  # a job forms each wave anew, its cache and random numbers with it
        return Timed(start)
    wave = started()

    def steps(count: int) -> None:
        with shard.without_gradients(), shard.autocast():
            for _ in range(count):
                wave.advance()

    return Timed(
        partial(steps, together),
        before=wave.rewind,
        lead=partial(steps, before),
        passes=together,
    )
