"""What lending a trainer's idle GPUs to generation brings: verl's dynamic scheduling and step switching, and FluidRL's workers, forecast.

Each figure of verl's is forecast twice: from sheets alone, and with a factor of generation that is fitted on the published
runs without lending. No published figure of a run that lends has a part in either. FluidRL's are forecast from sheets alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from scipy.optimize import brentq

from rlplan.calibration import Calibration, Factor, WorkKind
from rlplan.evals.claims import Bound, Measured, Stated, judged
from rlplan.evals.settings.published_points import Progress
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines
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
MODES = "separate_async on 32 GPUs"
# docs/advance/v1_async_trainer.md: hours of 100 steps without and with the switch.
SWITCH_OFF = 13.15 * HOUR_SECONDS / 100
SWITCH_ON = 11.79 * HOUR_SECONDS / 100
SWITCH_GAIN = 0.103
# The same, "V1 trainer all modes": hours of 150 steps of separate_async on two trainer nodes and two rollout nodes.
MODES_SECONDS = 14.10 * HOUR_SECONDS / 150
# docs/advance/dynamic_schedule.md: what dynamic scheduling takes less than each static split.
GAIN_OVER_EVEN, GAIN_OVER_UNEVEN = 0.175, 0.153
EVEN_OVER_UNEVEN = (1 - GAIN_OVER_UNEVEN) / (1 - GAIN_OVER_EVEN)

# Qwen3.5-35B-A3B, TP2 PP2 CP2 EP8, vLLM with TP4: 64 prompts with 8 responses in 4 updates, whose weights go over together.
V1 = PublishedRun(
    framework="verl-megatron",
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
    token_budget=34_816,
    tp=2,
    pp=2,
    cp=2,
    ep=8,
    rollout_tp=4,
    recomputes=True,
    old_log_prob="engine",
    offloads=frozenset({"actor"}),
)
# The same with as many GPUs again that generate, EP4, the trainer's own log-probabilities and shorter responses.
V1_EVEN = replace(
    V1,
    gpus=32,
    rollout_gpus=16,
    ep=4,
    old_log_prob="trainer",
    response_tokens=Logged(mean=12_288, max=32_768),
)
# The same model with its script: TP4 PP2 EP8, SGLang with TP8 and 128 sequences at most, half a batch ahead.
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
    token_budget=70_000,
    tp=4,
    cp=1,
    rollout_tp=8,
    rollout_memory_fraction=0.7,
    rollout_running=128,
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
SWITCHING = Lending(policy="adaptive", until=0.4, memory_fraction=0.6)
DYNAMIC = Lending(policy="adaptive", until=0.6, memory_fraction=0.45)
NOTES = (
    (
        "verl's switch (trainer.v1.separate_async.hybrid_rollout.enable_switch) is played as an adaptive share that begins at "
        "0.4, its dynamic scheduling as one that begins at 0.6; its `default` policy takes steps of 0.02 to 0.1 upwards and "
        "0.02 downwards, where 0.05 and 0.03 are played. Each interval between syncs is a step of 4 mini-batches of 16 prompts."
    ),
    (
        "From sheets: nothing is fitted. Calibrated: one factor of generation, at which the published runs without lending come "
        "out: on H100 that on 16 + 8 GPUs (473 s a step); on H20, whose seconds are published as pictures alone, 16 + 16 GPUs "
        "take 1.027 times as long as 8 + 24, which follows from both gains."
    ),
    (
        "No stage's seconds are published, and the switch's gain hangs on what training takes. Forecast are 134 s of a step for "
        "updates on 16 H100. With generation as it was, and updates twice as long, the switch would bring 16 %, 2.5 times as long "
        "8 %, three times 4 %; as they are forecast, 28 %. So it is a figure of how well the update is known, and that is not tuned here."
    ),
    (
        "The run of 16 + 16 GPUs without a switch (verl's table of V1's modes, 338 s a step; its GPUs are taken for H100, as those of the "
        "table beside it are) has no part in the factor: with it that run is forecast 12 % too short, from sheets 8 % too long. With "
        "training and log-probabilities 2.5 times as long as forecast it would be 4 % too short and the switch's gain 8 %, but the run "
        "of 16 + 8 then 8 % too long: two factors do not explain both runs without lending."
    ),
    (
        "verl's table of V1's modes has a synchronous run on those 32 GPUs too (547 s a step), which has no part in the factor either: "
        "from sheets it is forecast 16 % too short, where 16 + 16 is 8 % and 16 + 8 23 % too long. With generation 0.8 and training "
        "2.5 times as long as from sheets they come out 17 % and 1 % too short and 10 % too long. So no two factors explain the three: "
        "generation of 64 sequences a replica (the synchronous run) is forecast too fast, that of several hundred (16 + 8) too slow, "
        "and the updates cannot be told apart from it."
    ),
    (
        "Assumed on H20: a mean of 13,400 tokens, as the same model had on the same data on H100 with half the limit; on 8 "
        "training GPUs TP4 EP8 without pipeline, since the stated TP4 PP2 EP8 does not fit on 8. Multi-token prediction, with "
        "which the script samples, is not forecast: how many guesses are accepted is not published; the factor of 0.5 that the static splits "
        "give would be one of two tokens a step."
    ),
    (
        "FluidRL's shares follow what training waited for in the steps before, and are played as an adaptive share that begins at a half. "
        "Weights go by verl's broadcast and not by its own transfer, and nothing that waits for network or pre-emption counts. A mean of "
        "8,000 tokens a response is assumed; with 5,000 the gains come out at 21, 30, 35 and 37 %, with 11,000 at 19, 31, 37 and 37 %. Its rates are rounded to a thousand "
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


# How many times as long generation takes as sheets say.
SHEETS = 1.0


@cache
def seconds_of(
    run: PublishedRun, lending: Lending | None = None, generation: float = SHEETS
) -> float:
    """Return the seconds of a step, with or without lending, where generation takes so many times as long."""
    job = job_of(run)
    plan = replace(plan_of(run, job), lending=lending)
    facts = load_facts(job)
    if generation != SHEETS:
        stages = FrozenDict[WorkKind, Factor]({"generation": Factor(value=generation)})
        facts = facts.with_calibration(Calibration(site="static runs", stages=stages))
    return simulate(plan, facts).iteration_seconds * run.parts


@cache
def factor_of_switch() -> float:
    """Return the factor of generation at which the run without the switch takes as long as it did."""
    return _root(lambda factor: seconds_of(V1, None, factor) - SWITCH_OFF, 0.3, 1.2)


@cache
def factor_of_scheduling() -> float:
    """Return the factor of generation at which the static splits take as long beside each other as they did."""

    def error(factor: float) -> float:
        even, uneven = (seconds_of(run, None, factor) for run in (EVEN, UNEVEN))
        return even / uneven - EVEN_OVER_UNEVEN

    return _root(error, 0.25, 1.2)


def _root(error: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(error, low, high, rtol=0.01))


@dataclass(frozen=True, slots=True)
class Gain:
    """Hold a gain of lending over a run without it: shares of the seconds, forecast and published."""

    words: str
    run: PublishedRun
    over: PublishedRun
    lending: Lending
    factor: Callable[[], float]
    published: float
    where: str

    def forecast(self, generation: float) -> float:
        """Return the share of the seconds that lending saves where generation takes so many times as long."""
        lent = seconds_of(self.run, self.lending, generation)
        return 1 - lent / seconds_of(self.over, None, generation)


GAINS = (
    Gain(
        "16 + 8 GPUs over the same without", V1, V1, SWITCHING, factor_of_switch, SWITCH_GAIN, SWITCH
    ),
    Gain(
        "16 + 16 GPUs over the same without",
        EVEN, EVEN, DYNAMIC, factor_of_scheduling, GAIN_OVER_EVEN, SCHEDULING,
    ),
    Gain(
        "16 + 16 GPUs over 8 + 24 without",
        EVEN, UNEVEN, DYNAMIC, factor_of_scheduling, GAIN_OVER_UNEVEN, SCHEDULING,
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
        "with verl/experimental/fully_async_policy/shell/run_qwen35_35b_a3b_math_dynamic_megatron.sh; FluidRL, github.com/Terra-Flux/PolyRL, "
        "REPRODUCE.md (commit 2b2422dd)",
        notes=(*NOTES, _factors()),
        points=tuple(_points(progress)),
        claims=tuple(judged(CLAIMS, None)),
    )


def _factors() -> str:
    switch, scheduling = factor_of_switch(), factor_of_scheduling()
    return f"Factors of generation that the runs without lending gave: {switch:.2f} on H100, {scheduling:.2f} on H20."


def _points(progress: Progress | None) -> Sequence[Point]:
    runs = (
        (SWITCH, "16 + 8, without", V1, None, SWITCH_OFF),
        (SWITCH, "16 + 8, switching", V1, SWITCHING, SWITCH_ON),
        (MODES, "16 + 16, without", V1_EVEN, None, MODES_SECONDS),
    )
    found = []
    for done, (figure, series, run, lending, published) in enumerate(runs):
        if progress:
            progress(done, len(runs), series)
        for panel, factor in ((FROM_SHEETS, SHEETS), (CALIBRATED, factor_of_switch())):
            found.append(
                Point(
                    figure=figure,
                    panel=panel,
                    series=series,
                    gpus=run.gpus,
                    quantity="seconds",
                    forecast=seconds_of(run, lending, factor),
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
        return _share(gain.forecast(SHEETS if label == FROM_SHEETS else gain.factor()))

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
