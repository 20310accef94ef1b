"""RollPacker's tail batching, on verl's plan: short rounds that drop what is late, long rounds of what was dropped.

Sources: Gao et al. 2025, RollPacker, arXiv:2509.21009, section 4; its repository, Farrrrland/RollPacker at 1134217,
examples/e2e_performance: `max_prompts_ratio: 1.25`, `max_num_return_sequences: 5` for 4, neither of them in rounds of
long prompts (`fetch_long_prompts` in multi_async_generate_scheduler.py). Its elastic tensor parallelism, its
scheduling of rewards and its stream trainer are not played.
"""

from dataclasses import replace

from rlplan.job import Job
from rlplan.planner.systems.baselines import verl
from rlplan.profiles.facts import Facts
from rlplan.results.accuracy import SystemForecast
from rlplan.simulator.tail_batching import simulate_rounds

ABOUT = (
    "verl's plan with tail batching: 1.25 times as many prompts and samples begun as learnt from, the prompts that are "
    "late put off to rounds of their own"
)
BEGUN_RATIO = 1.25


def best_plan(job: Job, facts: Facts) -> SystemForecast:
    """Return verl's best plan, run in short and long rounds; or why it cannot be."""
    work = job.workload
    if work.environments or work.drops_responses:
        what = (
            "episodes in environments"
            if work.environments
            else "a job that drops responses already"
        )
        return SystemForecast(
            name="rollpacker", about=ABOUT, reason=f"rounds are not played for {what}"
        )
    found = verl.best_plan(job, facts)
    if found.plan is None:
        return replace(found, name="rollpacker", about=ABOUT)
    samples = BEGUN_RATIO if work.samples_per_prompt > 1 else 1.0
    more = replace(work, over_provisioning=BEGUN_RATIO, over_sampling=samples)
    plan = replace(found.plan, job=replace(job, workload=more), made_by="rollpacker")
    forecast = simulate_rounds(plan, facts)
    return replace(found, name="rollpacker", about=ABOUT, plan=plan, forecast=forecast)
