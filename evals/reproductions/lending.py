"""What lending a trainer's idle GPUs to generation brings: verl's dynamic scheduling and step switching, and FluidRL's workers, forecast.

Each figure of verl's is forecast twice: from sheets alone, and with factors that are fitted on the published runs without
lending. No published figure of a run that lends has a part in either. FluidRL's are forecast from sheets alone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from scipy.optimize import brentq, minimize

from rlplan.calibration import Calibration, Factor, WorkKind
from rlplan.evals.claims import Bound, Measured, Stated, judged
from rlplan.evals.settings.published_points import Progress
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Speculation
from rlplan.plan import Lending
from rlplan.planner.measured.framework_runs import PublishedRun, job_of, plan_of
from rlplan.profiles.facts import load_facts
from rlplan.results.accuracy import Point, Reproduction
from rlplan.simulator.simulate import simulate
from rlplan.workload import Logged

HOUR_SECONDS = 3600
# A gain is near where it is within a third of its size.
WITHIN = 1 / 3
# A gain below this is none: reruns of a job differ by as much.
NO_GAIN = 0.03

SWITCH, SCHEDULING = "step switching on 24 H100", "dynamic scheduling on 32 H20"
LATER = "step switching on 24 H100, 150 steps"
MODES = "sync and separate_async on 32 GPUs"
# docs/advance/v1_async_trainer.md: hours of 100 steps without and with the switch.
SWITCH_OFF = 13.15 * HOUR_SECONDS / 100
SWITCH_ON = 11.79 * HOUR_SECONDS / 100
SWITCH_GAIN = 0.103
# verl pull request 7373: hours of 150 steps without and with it.
LATER_OFF = 18.80 * HOUR_SECONDS / 150
LATER_ON = 16.43 * HOUR_SECONDS / 150
LATER_GAIN = 0.126
# The document again, "V1 trainer all modes": hours of 150 steps of separate_async on two trainer nodes and two rollout nodes, and
# of sync on all four.
MODES_SECONDS = 14.10 * HOUR_SECONDS / 150
SYNC_SECONDS = 22.79 * HOUR_SECONDS / 150
# verl pull request 6556: hours of 16 + 16 GPUs, of 8 + 24, and of 16 + 16 with dynamic scheduling, of steps that are not counted.
EVEN_HOURS, UNEVEN_HOURS, DYNAMIC_HOURS = 6.546, 6.379, 5.4
GAIN_OVER_EVEN, GAIN_OVER_UNEVEN = 0.175, 0.153
EVEN_OVER_UNEVEN = EVEN_HOURS / UNEVEN_HOURS

# Qwen3.5-35B-A3B, TP2 PP2 CP2 EP8, vLLM with TP4 in 0.7 of each GPU: 64 prompts with 8 responses in 4 updates, whose weights go
# over together. Micro-batches are of one sequence, since this model's layers are not packed.
V1 = PublishedRun(
    framework="verl-megatron",
    engines=Engines(train="megatron-core-2025-padded-to-rank", generate="vllm-0.15"),
    algorithm="grpo",
    model="qwen3.5-35b-a3b",
    gpu="h100",
    gpus=24,
    gpus_per_node=8,
    mode="async",
    train_gpus=16,
    rollout_gpus=8,
    parts=4,
    staleness=7.0,
    in_flight="recompute",
    prompts=64,
    samples=8,
    sequences_per_update=128,
    prompt_tokens=157,
    response_tokens=Logged(mean=13_343, max=32_768),
    longest_tokens=34_816,
    packs=False,
    tp=2,
    pp=2,
    cp=2,
    ep=8,
    rollout_tp=4,
    rollout_memory_fraction=0.7,
    recomputes=True,
    old_log_prob="engine",
    offloads=frozenset({"actor"}),
)
# Each run has lengths of its own; those of the pull request's follow from its tokens a second.
V1_SWITCHING = replace(V1, response_tokens=Logged(mean=13_478, max=32_768))
V1_LATER = replace(V1, response_tokens=Logged(mean=13_193, max=32_768))
V1_LATER_SWITCHING = replace(V1, response_tokens=Logged(mean=12_694, max=32_768))
# The same with as many GPUs again that generate, EP4, the trainer's own log-probabilities and shorter responses.
V1_EVEN = replace(
    V1,
    gpus=32,
    rollout_gpus=16,
    ep=4,
    old_log_prob="trainer",
    response_tokens=Logged(mean=12_288, max=32_768),
)
V1_SYNC = replace(
    V1_EVEN,
    mode="sync",
    parts=1,
    staleness=0.0,
    in_flight="drain",
    train_gpus=0,
    rollout_gpus=0,
    response_tokens=Logged(mean=12_720, max=32_768),
)
# The same model with its script: TP4 PP2 EP8, SGLang with TP8 and 128 sequences at most, half a batch ahead, packed. Four tokens are guessed
# ahead by the model's own layer: each is taken to be accepted with the probability at which three give slime's 3.24 tokens a round.
EVEN = replace(
    V1,
    framework="verl-fully-async",
    engines=Engines(train="megatron-core-2025", generate="sglang-0.5"),
    gpu="h20",
    gpus=32,
    rollout_gpus=16,
    staleness=5.0,
    response_tokens=Logged(mean=13_400, max=64_000),
    longest_tokens=68_096,
    packs=True,
    token_budget=70_000,
    tp=4,
    cp=1,
    rollout_tp=8,
    rollout_running=128,
    speculation=Speculation(draft_tokens=4, acceptance=0.863),
)
UNEVEN = replace(EVEN, train_gpus=8, rollout_gpus=24, pp=1)
# FluidRL (RLBoost, arXiv:2510.19225; github.com/Terra-Flux/PolyRL, REPRODUCE.md and examples/scripts/run_*_grpo8b_*.sh): Qwen3-8B on one
# node of H100, whose GPUs generate too until training begins, beside workers of two H100 that come and go. Tokens of prompts and responses a
# second of all GPUs: verl on the node alone (1,300 a GPU), and with one to four workers.
FLUID = "rollout workers that join 8 H100"
FLUID_ALONE = 8 * 1_300.0
FLUID_WITH = {1: 12_000.0, 2: 14_000.0, 3: 16_000.0, 4: 18_000.0}
# Neither length is published: of this model, thinking, up to 14,336 tokens.
FLUID_PROMPT, FLUID_RESPONSE = 150, 8_000
COLOCATED = PublishedRun(
    framework="verl-fsdp-0.5",
    engines=Engines(generate="sglang-0.5"),
    algorithm="grpo",
    model="qwen3-8b",
    gpu="h100",
    gpus=8,
    prompts=128,
    samples=8,
    sequences_per_update=1024,
    prompt_tokens=FLUID_PROMPT,
    response_tokens=Logged(mean=FLUID_RESPONSE, max=14_336),
    longest_tokens=14_848,
    token_budget=16_384,
    log_prob_micro_batch=8,
    rollout_tp=2,
    rollout_memory_fraction=0.6,
    rollout_running=256,
    recomputes=True,
    compares_reference=True,
)
HARVESTING = Lending(policy="adaptive", until=0.5, memory_fraction=0.6)
SWITCHING = Lending(policy="adaptive", until=0.4, memory_fraction=0.7)
DYNAMIC = Lending(policy="adaptive", until=0.6, memory_fraction=0.45)
NOTES = (
    (
        "verl's switch (trainer.v1.separate_async.hybrid_rollout.enable_switch) is played as an adaptive share that begins at "
        "0.4, its dynamic scheduling as one that begins at 0.6; its `default` policy takes steps of 0.02 to 0.1 upwards and "
        "0.02 downwards, where 0.05 and 0.03 are played. Each interval between syncs is a step of 4 mini-batches of 16 prompts. Each run "
        "has its own published length of responses: those of the pull request with the switch are 4 % shorter, so that its 12.6 % are 9.2 % a token."
    ),
    (
        "From sheets: nothing is fitted. Calibrated: on H100 factors of generation and of training, by least squares of the three kinds of "
        "published runs without a switch (16 + 8 GPUs, 16 + 16, and 32 by turns); on H20, whose seconds a step are not known since its hours are of "
        "steps that nobody counted, a factor of training at which 16 + 16 GPUs take 1.026 times as long as 8 + 24."
    ),
    (
        "What was found by verl's source (commit 1dda039b), and is forecast so since. Its setup asks for vLLM 0.18 or later, which "
        "prepares a step while the one before computes: the runs were forecast with vLLM 0.11, whose host's time made a step of 16 + 8 GPUs 23 % too "
        "long and let the switch gain 31.6 %. Its script of this model does not pack sequences on GPUs (use_remove_padding=False), since gated delta nets were not packed there, "
        "and a rank then pads all of its rows to the longest (pad_bshd_to_minibatch_max, on by default; pull request 6901): runs of mean 13,000 tokens "
        "compute 32,900 for nearly each. Without that updates were forecast too fast and calibrated by 2.70. "
        "Its fully asynchronous trainer has no more prompts under way than 16 a server, each until its last response has ended "
        "(`replica_prompts` of its sheet): a static split's servers are half empty while long responses end, and lent ones bring 16 prompts each. Without that a factor that "
        "explained the static splits left a gain of 8 %. "
        "Its script guesses four tokens ahead by the model's own layer."
    ),
    (
        "How many guesses are accepted is not published for that run. Taken is the probability at which three guesses give 3.24 tokens a round, as slime "
        "logged of Qwen3.6-27B (benchmarks/logged_steps.csv). With 2.5 to 4 tokens a step in place of 3.8 the calibrated gains "
        "changed by two hundredths at most (tried before products of few rows on H20 were forecast shorter). Assumed on H20: a mean of 13,400 tokens, as the same model had on the same data on H100 with half the "
        "limit; on 8 training GPUs TP4 EP8 without pipeline, since the stated TP4 PP2 EP8 needs 16."
    ),
    (
        "What is left. The synchronous run, whose replicas have 64 sequences and fewer, is forecast a fifth too short from sheets, so that generation of few "
        "sequences is too fast. It pulls both factors up. Whether these runs padded as the script of their model does is not published, nor are any stage's seconds. A response spans 1.47 versions of weights "
        "in the pull request's run without the switch, that is 241 responses are under way at a sync, more than are forecast: it has longer tails."
    ),
    (
        "FluidRL's shares follow what training waited for in the steps before, and are played as an adaptive share that begins at a half. "
        "Weights go by verl's broadcast and not by its own transfer, and nothing that waits for network or pre-emption counts. A mean of "
        "8,000 tokens a response is assumed; with 5,000 the gains come out at 21, 30, 35 and 37 %, with 11,000 at 19, 31, 37 and 37 % (before more intervals were counted). Its rates are rounded to a thousand "
        "tokens a second, so that a gain of 13 % may be one of 10 to 17 %. They were forecast once, before anything was changed for them."
    ),
    (
        "Left out, since stored text has no setup to forecast or no figure of their own mechanism: BiDiRL's table "
        "(verl-project/verl-recipe issue 129: 1.11 to 1.51 times the throughput without borrowing, on 16 devices, 4 of which generate; "
        "neither model nor device is stated), "
        "DynaRL (OSDI 2026: 1.27 to 1.98 times other systems on 64 and 128 GPUs), RLinf (OSDI 2026: 1.07 to 2.43 times), Libra "
        "(up to 3.0 times on 48 A800): all are beside other systems, not beside themselves without lending. verl-omni's "
        "switching (-18 % on 3 GPUs, none on 4) is of a diffusion model."
    ),
)


class Factors(NamedTuple):
    """How many times as long as sheets say generation takes, and whatever passes over a batch to train on it."""

    generation: float = 1.0
    training: float = 1.0


SHEETS = Factors()


@cache
def seconds_of(
    run: PublishedRun, lending: Lending | None = None, factors: Factors = SHEETS
) -> float:
    """Return the seconds of a step, with or without lending."""
    job = job_of(run)
    plan = replace(plan_of(run, job), lending=lending)
    facts = load_facts(job)
    if factors != SHEETS:
        training = Factor(value=factors.training)
        stages = FrozenDict[WorkKind, Factor](
            {
                "generation": Factor(value=factors.generation),
                "training": training,
                "inference": training,
            }
        )
        facts = facts.with_calibration(Calibration(site="static runs", stages=stages))
    return simulate(plan, facts).iteration_seconds * run.parts


# Published runs of V1 without a switch, of three kinds, by which its factors are fitted.
WITHOUT_SWITCH = ((V1, SWITCH_OFF), (V1_EVEN, MODES_SECONDS), (V1_SYNC, SYNC_SECONDS))


@cache
def factors_of_switch() -> Factors:
    """Return the factors at which the runs without the switch take as long as they did, by least squares of logarithms."""

    def error(logs: Sequence[float]) -> float:
        factors = Factors(*(math.exp(each) for each in logs))
        return sum(
            math.log(seconds_of(run, None, factors) / seconds) ** 2
            for run, seconds in WITHOUT_SWITCH
        )

    # Steps of a search on figures that chance in orders moves by about 1 %.
    found = minimize(
        error, [0.1, 0.3], method="Nelder-Mead", options={"xatol": 0.03, "fatol": 1e-4}
    )
    return Factors(*(math.exp(each) for each in found.x))


@cache
def factors_of_scheduling() -> Factors:
    """Return the factor of training at which the static splits take as long beside each other as they did.

    Of one, generation is what a step waits for, of the other training: so their ratio tells both apart.
    """

    def error(factor: float) -> float:
        factors = Factors(training=factor)
        even, uneven = (seconds_of(run, None, factors) for run in (EVEN, UNEVEN))
        return even / uneven - EVEN_OVER_UNEVEN

    return Factors(training=float(brentq(error, 0.5, 3.0, rtol=0.01)))


@dataclass(frozen=True, slots=True)
class Gain:
    """Hold a gain of lending over a run without it: shares of the seconds, forecast and published."""

    words: str
    run: PublishedRun
    over: PublishedRun
    lending: Lending
    factors: Callable[[], Factors]
    published: float
    where: str

    def forecast(self, factors: Factors) -> float:
        """Return the share of the seconds that lending saves."""
        lent = seconds_of(self.run, self.lending, factors)
        return 1 - lent / seconds_of(self.over, None, factors)


GAINS = (
    Gain(
        "16 + 8 GPUs over the same without",
        V1_SWITCHING, V1, SWITCHING, factors_of_switch, SWITCH_GAIN, SWITCH,
    ),
    Gain(
        "16 + 8 GPUs over the same without, other runs",
        V1_LATER_SWITCHING, V1_LATER, SWITCHING, factors_of_switch, LATER_GAIN, LATER,
    ),
    Gain(
        "16 + 16 GPUs over the same without",
        EVEN, EVEN, DYNAMIC, factors_of_scheduling, GAIN_OVER_EVEN, SCHEDULING,
    ),
    Gain(
        "16 + 16 GPUs over 8 + 24 without",
        EVEN, UNEVEN, DYNAMIC, factors_of_scheduling, GAIN_OVER_UNEVEN, SCHEDULING,
    ),
)  # fmt: skip


def with_workers(count: int) -> PublishedRun:
    """Return FluidRL's run with so many workers of two GPUs beside its node."""
    return replace(
        COLOCATED, gpus=16, gpus_per_node=8, mode="streaming", train_gpus=8, rollout_gpus=2 * count
    )


WORKERS = tuple(
    Gain(
        f"8 GPUs and {count} {'worker' if count == 1 else 'workers'} of 2 over 8 alone",
        with_workers(count), COLOCATED, HARVESTING, lambda: SHEETS, 1 - FLUID_ALONE / rate, FLUID,
    )
    for count, rate in FLUID_WITH.items()
)  # fmt: skip
FROM_SHEETS, CALIBRATED = "from sheets", "calibrated on runs without lending"


def reproduce(progress: Progress | None = None) -> Reproduction:
    """Return every step forecast, and every claim marked.

    Args:
        progress: Called with (done, total, point) before each.
    """
    return Reproduction(
        name="lending",
        title="Lending a trainer's idle GPUs to generation, forecast",
        source="verl documentation, docs/advance/dynamic_schedule.md and docs/advance/v1_async_trainer.md (commit 1dda039b), "
        "pull requests 6556 and 7373, with verl/experimental/fully_async_policy/shell/run_qwen35_35b_a3b_math_dynamic_megatron.sh; FluidRL, github.com/Terra-Flux/PolyRL, "
        "REPRODUCE.md (commit 2b2422dd)",
        notes=(*NOTES, _factors()),
        points=tuple(_points(progress)),
        claims=tuple(judged(CLAIMS, None)),
    )


def _factors() -> str:
    switch, scheduling = factors_of_switch(), factors_of_scheduling()
    return (
        f"Factors that the runs without lending gave: generation {switch.generation:.2f} and training {switch.training:.2f} on H100, "
        f"training {scheduling.training:.2f} on H20."
    )


def _points(progress: Progress | None) -> Sequence[Point]:
    runs = (
        (SWITCH, "16 + 8, without", V1, None, SWITCH_OFF),
        (SWITCH, "16 + 8, switching", V1_SWITCHING, SWITCHING, SWITCH_ON),
        (LATER, "16 + 8, without", V1_LATER, None, LATER_OFF),
        (LATER, "16 + 8, switching", V1_LATER_SWITCHING, SWITCHING, LATER_ON),
        (MODES, "16 + 16, without", V1_EVEN, None, MODES_SECONDS),
        (MODES, "32, synchronous", V1_SYNC, None, SYNC_SECONDS),
    )
    found = []
    for done, (figure, series, run, lending, published) in enumerate(runs):
        if progress:
            progress(done, len(runs), series)
        for panel, factors in ((FROM_SHEETS, SHEETS), (CALIBRATED, factors_of_switch())):
            found.append(
                Point(
                    figure=figure,
                    panel=panel,
                    series=series,
                    gpus=run.gpus,
                    quantity="seconds",
                    forecast=seconds_of(run, lending, factors),
                    published=published,
                    plan="lent to generation" if lending else "nothing lent",
                )
            )
    for count, rate in {0: FLUID_ALONE, **FLUID_WITH}.items():
        found.append(_fluid_point(count, rate))
    return found


def _fluid_point(count: int, rate: float) -> Point:
    """Return a step of FluidRL's with so many workers, forecast from sheets, beside what its rate makes of the assumed lengths."""
    tokens = COLOCATED.prompts * COLOCATED.samples * (FLUID_PROMPT + FLUID_RESPONSE)
    run = with_workers(count) if count else COLOCATED
    return Point(
        figure=FLUID,
        panel=FROM_SHEETS,
        series="workers of 2",
        gpus=8 + 2 * count,
        quantity="seconds",
        forecast=seconds_of(run, HARVESTING if count else None),
        published=tokens / rate,
        plan="lent to generation" if count else "nothing lent",
    )


def _share(found: float) -> Measured:
    return Measured(figures=(found,), evidence=f"{100 * found:.1f} %")


def _size(gain: Gain, label: str) -> Stated[None]:
    def measure(_: None) -> Measured:
        return _share(gain.forecast(SHEETS if label == FROM_SHEETS else gain.factors()))

    bound = Bound(least=gain.published * (1 - WITHIN), most=gain.published * (1 + WITHIN))
    return Stated(
        where=gain.where,
        text=f"{gain.words}: {100 * gain.published:.1f} % less time, within a third ({label})",
        bounds=(bound,),
        measure=measure,
    )


def _sign(gain: Gain) -> Stated[None]:
    return Stated(
        where=gain.where,
        text=f"{gain.words}: lending pays ({FROM_SHEETS})",
        bounds=(Bound(least=NO_GAIN),),
        measure=lambda _: _share(gain.forecast(SHEETS)),
    )


def _no_gain(_: None) -> Measured:
    """Return what lending brings where generation has GPUs enough."""
    return _share(1 - seconds_of(UNEVEN, DYNAMIC) / seconds_of(UNEVEN))


CLAIMS: tuple[Stated[None], ...] = (
    *(_sign(gain) for gain in GAINS),
    *(_size(gain, FROM_SHEETS) for gain in GAINS),
    *(_size(gain, CALIBRATED) for gain in GAINS),
    *(_sign(gain) for gain in WORKERS),
    *(_size(gain, FROM_SHEETS) for gain in WORKERS),
    Stated(
        where=SCHEDULING,
        text="8 + 24 GPUs, whose trainer never waits: lending does not pay",
        bounds=(Bound(most=NO_GAIN),),
        measure=_no_gain,
    ),
)
