"""HybridFlow's evaluation (Sheng et al. 2025, EuroSys, section 8): what each system makes of its jobs.

Parallel sizes of the systems are not published: those of HybridFlow are the search's own, over all
placements, its peers' are what `rlplan.planner.systems.baselines` finds. Each point is forecast once in a process.
"""

from collections.abc import Sequence
from functools import lru_cache

from rlplan.errors import InfeasibleError
from rlplan.evals.settings.hybridflow_jobs import TOKENS, TRUE_PROMPTS, job_of
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import Plan, TaskDraft
from rlplan.planner.placements.partitions import placed_roles
from rlplan.planner.placements.strategies import place
from rlplan.planner.requests.pinned import Pinned
from rlplan.planner.search import search
from rlplan.planner.systems.baselines import load_baseline
from rlplan.planner.systems.system_plans import job_tasks
from rlplan.profiles.facts import load_facts
from rlplan.results.accuracy import SystemForecast
from rlplan.results.forecast import Candidate, SearchResult

OURS = "hybridflow"
OPENRLHF = "openrlhf-0.2"
PEERS = {"NeMo-Aligner": "nemo-aligner-0.2", "DS-Chat": "deepspeed-chat", "OpenRLHF": OPENRLHF}
ABOUT = (
    "any placement, Megatron training with full recomputation, vLLM 0.3 on the same GPUs in a layout of "
    "its own, weights brought there inside micro-data-parallel groups"
)

# OpenRLHF's series equals OpenRLHF's own published seconds to four digits, measured on its own prompts,
# which its vLLM gets without padding; the other systems compute prompts padded to 1,024 tokens.
PROMPTS_BY_SYSTEM = {OPENRLHF: TRUE_PROMPTS}


@lru_cache(maxsize=512)
def system_forecast(system: str, algorithm: str, model: str, gpus: int) -> SystemForecast:
    """Return the best plan of a system for one point of the evaluation.

    Args:
        system: A baseline's name, or `hybridflow`.
        algorithm: As the project names it, such as `safe-rlhf`.
        model: A size such as `34B`, or actor's and critic's such as `13B/70B`.
    """
    if system == OURS:
        return _ours(algorithm, model, gpus)
    job = job_of(model, gpus, algorithm, PROMPTS_BY_SYSTEM.get(system, TOKENS))
    return load_baseline(system).best_plan(job, load_facts(job))


def _ours(algorithm: str, model: str, gpus: int) -> SystemForecast:
    found = searched(algorithm, model, gpus)
    if isinstance(found, str):
        return SystemForecast(name=OURS, about=ABOUT, reason=found)
    considered = sum(found.considered.values())
    return _first(OURS, _generating_at_home(found), considered)


def placed_forecast(placement: str, algorithm: str, model: str, gpus: int) -> SystemForecast:
    """Return HybridFlow's best plan of a named placement: `colocate`, `split` or `standalone`.

    Raises:
        UnknownNameError: No placement strategy has that name.
    """
    wanted = {
        frozenset(each) for each in place(placement, placed_roles(job_of(model, gpus, algorithm)))
    }
    found = searched(algorithm, model, gpus)
    if isinstance(found, str):
        return SystemForecast(name=placement, about=ABOUT, reason=found)
    plans = [each for each in _generating_at_home(found) if _sets(each.plan) == wanted]
    return _first(placement, plans)


def _first(name: str, plans: Sequence[Candidate], considered: int = 0) -> SystemForecast:
    if not plans:
        return SystemForecast(name=name, about=ABOUT, reason="no plan of this placement fits")
    plan, forecast = plans[0].plan, plans[0].forecast
    return SystemForecast(
        name=name, about=ABOUT, plan=plan, forecast=forecast, considered=considered
    )


def _generating_at_home(found: SearchResult) -> list[Candidate]:
    """Return the plans in which the actor generates where it trains, as HybridFlow's engine does."""
    return [each for each in found.plans if each.plan.transition != "two-copies"]


def _sets(plan: Plan) -> set[frozenset[str]]:
    return {frozenset(pool.roles) for pool in plan.pools if not pool.is_host}


@lru_cache(maxsize=256)
def searched(algorithm: str, model: str, gpus: int) -> SearchResult | str:
    """Return the search over all placements, or why nothing fits."""
    job = job_of(model, gpus, algorithm)
    try:
        return search(job, load_facts(job), pinned=Pinned(tasks=FrozenDict(_drafts(job))))
    except InfeasibleError as error:
        return str(error)


def _drafts(job: Job) -> dict[str, TaskDraft]:
    """Fix what HybridFlow's workers of the paper do.

    They recompute activations, keep everything on the GPUs, and do not interleave pipeline stages.
    """
    trained = TaskDraft(recompute="full", offload=False, chunks=1)
    return {
        task.name: trained if task.kind == "train" else TaskDraft(offload=False)
        for task in job_tasks(job)
        if task.kind != "generate"
    }
