"""Read a command line of Megatron's flags and a rollout's: one pool that trains, SGLang on it or beside it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import USUAL_ROUNDS, rounds_of
from rlplan.job import (
    USUAL_WEIGHT_SYNC,
    DynamicSampling,
    Engines,
    Hyperparameters,
    KlPlace,
    OldLogProb,
    Role,
    WeightSync,
)
from rlplan.models import Adapter, LinearShare, Precision, TrainingPrecision
from rlplan.plan import BATCH_AHEAD_MODE, ENDLESS_MODE, Recompute, TaskPlan
from rlplan.planner.configs.losses import (
    NO_LIMIT,
    algorithm_of,
    given_losses,
    kl_place,
    sampling_guess,
)
from rlplan.planner.configs.megatron import teaching
from rlplan.planner.configs.megatron.model import (
    USUAL_LONGEST_PROMPT,
    WrittenModel,
    take_model_of_file,
    written_model,
)
from rlplan.planner.configs.models import published_precision
from rlplan.planner.configs.reading.settings import OFF, Settings
from rlplan.planner.configs.run import ROLLOUT_POOL, TRAIN_POOL, Run, RunPool, Work, nodes_of
from rlplan.planner.configs.shell.text import OF_THE_RUN, Gap
from rlplan.planner.configs.sizes import (
    ONLY_READ,
    SERVICE,
    divided,
    models_of,
    recomputed_parts,
    role_sizes,
    said_width,
    trainer_options,
    updates_of,
)
from rlplan.planner.plans.trained import TrainerSizes
from rlplan.profiles.catalog import load_model
from rlplan.trainers import TrainerOptions

ENGINE: Final = "sglang-0.5.6"
# Specifications of slime and miles that put transformers' linear attention into Megatron's layers.
OWN_LINEAR: Final = frozenset({"get_qwen3_5_spec", "get_qwen3_next_spec"})
BRIDGE: Final = "bridge"
MEGATRON: Final = "megatron"
ASYNC: Final = "train_async.py"
GPUS_OF_A_NODE: Final = 8
CRITIC_POOL: Final = "critic"
DAPO, GRPO, PPO = "dapo", "grpo", "ppo"
# What slime's own rollouts are called: the usual one, and the same with each response streamed.
USUAL_ROLLOUTS: Final = ("sglang_rollout.generate_rollout", "sglang_streaming_rollout")
FULLY_ASYNC: Final = "fully_async"
# Groups that have ended and wait in the queue of examples/fully_async (output_queue, maxsize).
WAITING_GROUPS: Final = 1000
# Steps by which samples are taken to be ahead at most: a run whose steps are so small is a trial.
MOST_AHEAD: Final = 8
AHEAD_NOTE: Final = (
    f"samples of at most {MOST_AHEAD} steps are taken to be under way, and more may be"
)
# Ends the names of filters that drop groups only where enough others are under way (filter_hub/dynamic_sampling_filters.py).
WITHOUT_MORE: Final = "with_fallback"
NO_FILTER: Final = "has no effect on a rollout that never stops, which calls no filter and begins prompts one by one"
CUT_EXPERTS: Final = "experts that all ranks of an engine have a part of, which are forecast as spread over the ranks"
PROMPT_GUESS: Final = "prompts of at most {:,} tokens; {} says it"
GPUS_GUESS: Final = (
    "{} GPUs a node: the script counts those of the machine on which it runs (line {}); a variable that it reads "
    "says otherwise"
)
BATCH_NOTE: Final = (
    "an update of {} samples, a micro-batch for every copy of the model, as Megatron has it where neither "
    "global-batch-size nor num-steps-per-rollout is given"
)
WRITTEN_NOTE: Final = "the model is taken as the flags write it out: {}"
CUT_NOTE: Final = "the model is the first {} layers of {}, as its flags say"
UNKNOWN_NOTE: Final = "no sheet is of {}"
OTHER_NOTE: Final = "the sheet of {} has other sizes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Hold what a framework has of its own in how it runs.

    Attributes:
        trainer: Name of its sizes in the sheet of keys.
        reuses_log_probs: Whether the update of a step that has one takes its own log-probabilities for the old ones.
        weight_sync: Where that is not its usual one.
        adapter: That is trained.
        critic_leaves: Whether a trainer with a critic leaves the GPUs whatever the flags say.
        one_pool: Whether colocate lets no engine have other GPUs than those that train, whatever the flags say.
        own_linear: What of linear attention each rank computes in the framework's own layers.
        critic_gpus: That only a critic trains on, beside engines on GPUs of their own; 0 where it shares the actor's.
        mode: What a run's mode, staleness and responses under way are; nothing in synchronous training.
        under_way: Samples that a rollout without an end keeps under way at all engines; None where only their own limits hold.
        logits: How the actor's trainer makes log-probabilities, where the framework's usual way does not hold.
    """

    trainer: str = MEGATRON
    reuses_log_probs: bool = False
    weight_sync: WeightSync = USUAL_WEIGHT_SYNC
    adapter: Adapter | None = None
    critic_leaves: bool = False
    one_pool: bool = False
    own_linear: LinearShare = "all"
    critic_gpus: int = 0
    mode: Mapping[str, Any] | None = None
    under_way: int | None = None
    logits: str | None = None


def run_by(settings: Settings, ways: Ways) -> Run:
    """Return what a configuration trains, and how, in a framework's ways.

    Raises:
        FileError: It learns from texts, or a key that matters cannot be imported; it is named.
    """
    _check_kind(settings)
    take_model_of_file(settings)
    models, keys = models_of(settings, _roles(settings))
    written = written_model(settings)
    own = written.own
    train_gpus, rollout_gpus = gpus_of(settings)
    if not (rollout_gpus or ways.one_pool):
        _doubt_other_gpus(settings, train_gpus)
    _name_moves(settings, rollout_gpus)
    trained = tuple(role for role in models if not _is_served(settings, role))
    pools, groups = _pools(settings, trained, train_gpus, rollout_gpus, ways.critic_gpus)
    sizes = {role: _sizes(settings, ways, role, train_gpus) for role in models}
    work = _work(settings, sizes["actor"].dp)
    sampling = sampling_of(settings)
    say_doubts(settings)
    return Run(
        framework=settings.sheet.trainers[ways.trainer].framework,
        trainer=ways.trainer,
        rollout="sglang",
        engines=Engines(
            train=settings.sheet.trainers[ways.trainer].engine,
            generate=ENGINE,
            sleeps=bool(rollout_gpus) or _rollout_leaves(settings),
            graph_sequences=_graph_sequences(settings),
        ),
        algorithm=algorithm(settings),
        models=models,
        model_keys=keys,
        architectures={} if own is None else dict.fromkeys(trained, own),
        work=_begun(settings, work, sampling),
        groups=groups,
        least_node=gpus_of_a_node(settings) if _guesses_nodes(settings, rollout_gpus) else None,
        pools=pools,
        generate=_generation(settings, _generating(pools), ways.under_way),
        trainers=sizes,
        options={role: _options(settings, ways, role) for role in trained},
        loss=_loss(settings),
        teacher=teaching.teacher_of(settings, ENGINE),
        old_log_prob=_old_log_prob(settings, reuses=ways.reuses_log_probs and work.updates == 1),
        weight_sync=ways.weight_sync,
        precision=_precision(settings),
        rollout_precision=published_precision(models["actor"], written.sheet),
        kv_cache=cast(TrainingPrecision | None, settings.value("kv_cache")),
        adapter=ways.adapter,
        dynamic_sampling=sampling,
        bucket_bytes=settings.optional_whole("bucket_bytes"),
        notes=tuple(_notes(settings, models["actor"], written, sizes["actor"].dp)),
        guesses=tuple(_guesses(settings, work, sampling)),
        **(ways.mode or {}),
    )


def _check_kind(settings: Settings) -> None:
    """Refuse what learns from texts, and a run without steps, which validates once and ends (slime 0.3.1 and miles, train.py, "eval-only").

    Raises:
        FileError: It is one of these.
    """
    settings.unmapped("loss")
    key = settings.key_of("steps")
    given = settings.flat.get(key)
    if given is not None and not given.gaps and given.value == 0 and given.value is not False:
        problem = "trains no step, and only validates"
        raise settings.refused_key(key, problem, "a configuration that trains")


def _old_log_prob(settings: Settings, *, reuses: bool) -> OldLogProb:
    """Return where old log-probabilities come from: without a pass of their own it is as if the engine gave them."""
    engine = settings.on("rollout_log_probs") and not settings.on("mismatch_metrics")
    return "engine" if engine or reuses else "trainer"


def gpus_of(settings: Settings) -> tuple[int, int]:
    """Return the GPUs that train, and those that only generate.

    Raises:
        FileError: Nothing says how many generate beside training.
    """
    train = settings.whole("actor_nodes") * gpus_of_a_node(settings)
    if settings.on("colocate"):
        return train, 0
    rollout = settings.optional_whole("rollout_gpus")
    if rollout is None or rollout < 1:
        problem = "is missing: no GPU generates, and colocate is off"
        raise settings.refused("rollout_gpus", problem, "at least 1, or --colocate")
    return train, rollout


def _name_moves(settings: Settings, rollout_gpus: int) -> None:
    """Name what engines do with their memory between uses that is not counted."""
    if rollout_gpus and settings.on("offload_rollout"):
        settings.leave_out("offload_rollout", "engines that leave GPUs on which nobody else works")
    if not (rollout_gpus or _rollout_leaves(settings)):
        settings.leave_out("keeps_rollout", "an engine that stays in memory while others work")


def _doubt_other_gpus(settings: Settings, train: int) -> None:
    if settings.optional_whole("rollout_gpus") not in {None, train}:
        settings.doubt("rollout_gpus", "engines on other GPUs than those that train")


def gpus_of_a_node(settings: Settings) -> int:
    """Return the GPUs of a node that train: slime's usual where a script counts those of its machine."""
    if _counted(settings):
        settings.used.add(settings.key_of("actor_gpus_per_node"))
        return GPUS_OF_A_NODE
    return settings.whole("actor_gpus_per_node")


def _counted(settings: Settings) -> list[Gap]:
    """Return what is not known of a node's GPUs since it is of the machine on which the script runs."""
    given = settings.flat.get(settings.key_of("actor_gpus_per_node"))
    gaps = () if given is None else given.gaps
    return [gap for gap in gaps if gap.reason.endswith(OF_THE_RUN)]


def critic_gpus_of(settings: Settings) -> int:
    """Return the GPUs of a critic that has some of its own: as many as the actor's where nothing says it.

    ray/placement_group.py of slime 0.2.4: behind the actor's, and before those of engines where these have their own.
    """
    nodes = settings.optional_whole("critic_nodes") or settings.whole("actor_nodes")
    each = settings.optional_whole("critic_gpus_per_node") or gpus_of_a_node(settings)
    return nodes * each


def _nodes(settings: Settings, train: int, rollout: int) -> tuple[int, int]:
    """Return GPUs of a node, and nodes: pools of few GPUs stand together in one, engines for validation alone beside them."""
    per_node, nodes = gpus_of_a_node(settings), settings.whole("actor_nodes")
    own = "validation_gpus" in settings.sheet.settings
    beside = rollout + (settings.whole("validation_gpus") if own else 0)
    if not beside:
        return per_node, nodes
    said = _said_width(settings)
    return nodes_of(train + beside, said or per_node, least=said or 1)


def _said_width(settings: Settings) -> int | None:
    """Return the GPUs of a node, as a key or the script's own `ray start` says them; None where neither does."""
    return said_width(settings, gpus_of_a_node(settings))


def _is_served(settings: Settings, role: Role) -> bool:
    return role == "teacher" and teaching.serves(settings)


def _pools(
    settings: Settings, trained: tuple[Role, ...], train: int, rollout: int, critic: int
) -> tuple[tuple[RunPool, ...], tuple[tuple[int, int], ...]]:
    """Return the pools, and the nodes of all; a teacher's server stands beside pools that are parts of a node."""
    beside = tuple(role for role in trained if role != "critic" or not critic)
    pools = [RunPool(name=TRAIN_POOL, gpus=train, roles=beside)]
    if critic:
        pools.append(RunPool(name=CRITIC_POOL, gpus=critic, roles=("critic",)))
    if rollout:
        pools.append(RunPool(name=ROLLOUT_POOL, gpus=rollout, roles=("actor",)))
    per_node, nodes = _nodes(settings, train + critic, rollout)
    if not teaching.serves(settings):
        return tuple(pools), ((per_node, nodes),)
    server = teaching.pool_of(settings)
    widest = settings.optional_whole("gpus_per_node") or max(GPUS_OF_A_NODE, per_node)
    together = per_node + server.gpus
    if nodes == 1 and together <= widest:
        return (*pools, server), ((together, 1),)
    return (*pools, server), ((per_node, nodes), nodes_of(server.gpus, per_node))


def _generating(pools: tuple[RunPool, ...]) -> RunPool:
    """Return the pool on which engines stand: their own, or that of training."""
    return next((pool for pool in pools if pool.name == ROLLOUT_POOL), pools[0])


def _guesses_nodes(settings: Settings, rollout: int) -> bool:
    """Tell whether nothing says how many GPUs a node has: trainers that are part of one leave room for engines.

    Whatever part of a node `--actor-num-gpus-per-node` says: ray/placement_group.py packs all bundles into as few nodes as
    it can, and gives the trainers the first of them.
    """
    return rollout > 0 and _said_width(settings) is None


def compares(settings: Settings) -> bool:
    """Tell whether the actor is compared with a reference: with a weight of 0 too (ray/placement_group.py, with_ref)."""
    return settings.on("kl_loss") or settings.number("kl_reward_weight") != 0


def _roles(settings: Settings) -> dict[Role, str]:
    names: dict[Role, str] = {"actor": "model"}
    if compares(settings):
        names["reference"] = "model"
    if settings.word("estimator") == PPO:
        names["critic"] = "model"
    if settings.on("distils") and settings.value("teacher_kind") == "megatron":
        # A checkpoint of the actor's architecture, which Megatron swaps in as it does the reference.
        names["teacher"] = "model"
    elif teaching.serves(settings):
        names["teacher"] = "teacher_model"
    return names


def never_stops(settings: Settings) -> bool:
    """Tell whether samples are generated without an end beside training: by a rollout for that, or by miles' switch.

    The switch only stands for such a rollout (miles/utils/arguments.py, resolve_rollout_function_paths).
    """
    switched = "fully_async" in settings.sheet.settings and settings.on("fully_async")
    named = FULLY_ASYNC in str(settings.value("rollout_function"))
    return is_async(settings) and (switched or named)


def filters(settings: Settings) -> bool:
    """Tell whether groups are dropped by a function of their rewards: rollouts that never stop call none."""
    return settings.is_given("filters") and not never_stops(settings)


def algorithm(settings: Settings) -> str:
    """Return the algorithm: that of the estimator, or DAPO where its groups are filtered and no reference compares."""
    name = algorithm_of(settings, compares=compares(settings))
    return DAPO if name == GRPO and filters(settings) and not compares(settings) else name


def sampling_of(settings: Settings) -> DynamicSampling | None:
    """Return how groups are sampled again: until enough have passed, without a limit (rollout/sglang_rollout.py)."""
    if not filters(settings) or not load_algorithm(algorithm(settings)).groups:
        return None
    usual = DynamicSampling(max_rounds=NO_LIMIT, expected_rounds=USUAL_ROUNDS)
    if not str(settings.value("filters")).endswith(WITHOUT_MORE):
        return usual
    prompts = max(1, settings.whole("prompts"))
    begun = settings.optional_whole("begun_prompts") or prompts
    return replace(usual, expected_rounds=min(USUAL_ROUNDS, max(1.0, begun / prompts)))


def _begun(settings: Settings, work: Work, sampling: DynamicSampling | None) -> Work:
    """Return the work with the prompts that are begun beyond those that are waited for.

    rollout/sglang_rollout.py, generate_rollout_async: batches of `over_sampling_batch_size` are begun beside each other until
    those that no filter has dropped so far are as many as a step learns from; what runs when enough have passed is cut off.
    """
    if never_stops(settings):
        return work
    batch = settings.optional_whole("begun_prompts") or work.prompts
    waited = work.prompts * (rounds_of(sampling) if sampling else 1.0)
    begun = batch * math.ceil(waited / batch)
    return replace(work, over_provisioning=max(1.0, begun / waited))


def is_async(settings: Settings) -> bool:
    """Tell whether the start generates the next batch while this one is learnt from."""
    return settings.start.endswith(ASYNC)


def updates_a_step(settings: Settings, samples: int, copies: int) -> int:
    """Return the updates of a step: told, or by their samples; a micro-batch on every copy where neither is.

    Raises:
        FileError: There are none.
    """
    steps = settings.optional_whole("steps_a_rollout")
    if steps is not None:
        if steps < 1:
            raise settings.refused("steps_a_rollout", "is no number of updates", "at least 1")
        if not settings.is_given("update_sequences"):
            if samples % steps:
                what = f"updates that do not divide a step's {samples} samples"
                settings.doubt("steps_a_rollout", what)
            return next(each for each in range(min(steps, samples), 0, -1) if samples % each == 0)
        settings.whole("update_sequences")  # says the same, or the run stops
        return steps if samples % steps == 0 else 1
    if settings.is_given("update_sequences"):
        return updates_of(settings, samples)
    size = settings.of(MEGATRON, "actor").whole("micro_batch") * copies
    return next(each for each in range(max(1, samples // size), 0, -1) if samples % each == 0)


def says_updates(settings: Settings) -> bool:
    """Tell whether a configuration says how many samples an update takes, or how many updates a step has."""
    return settings.is_given("steps_a_rollout") or settings.is_given("update_sequences")


def _work(settings: Settings, copies: int) -> Work:
    prompts, samples = settings.whole("prompts"), settings.whole("samples")
    response, turn = settings.optional_whole("max_response"), None
    prompt, total = settings.optional_whole("max_prompt"), settings.optional_whole("max_total")
    session = _longest_session(settings)
    if session is not None:
        turn, response = response, None
        total = session if total is None else min(session, total)
    if response is None and total is None:
        problem = "is missing, and nothing else ends a response"
        raise settings.refused("max_response", problem, "tokens, at least 1")
    if prompt is None:
        prompt = USUAL_LONGEST_PROMPT if total is None else max(1, total - 1)
    return Work(
        prompts=prompts,
        samples=samples,
        updates=updates_a_step(settings, prompts * samples, copies),
        max_prompt=prompt,
        max_response=response,
        max_total=total,
        turns=None if is_played(settings) else 1,
        turn_response=turn,
    )


def _longest_session(settings: Settings) -> int | None:
    """Return the most tokens of all turns of a sample, where a function of turns is given it; None elsewhere."""
    if "max_session" not in settings.sheet.settings or not is_played(settings):
        return None
    if settings.is_given("max_response") and settings.is_given("max_session"):
        key = settings.key_of("max_session")
        settings.leave_out(
            "max_response", f"what a turn may write: all turns of a sample are limited by {key}"
        )
    return settings.optional_whole("max_session")


def is_played(settings: Settings) -> bool:
    """Tell whether a function of the user's own generates, which may take turns with tools."""
    rollout = str(settings.value("rollout_function"))
    usual = any(each in rollout for each in (*USUAL_ROLLOUTS, FULLY_ASYNC))
    return settings.is_given("generate_function") or not usual


def say_doubts(settings: Settings) -> None:
    """Name what changes the amount of work, and is counted in part or not at all."""
    if is_played(settings):
        for name in ("generate_function", "rollout_function"):
            if settings.is_given(name):
                settings.doubt(name, "turns, tools and observations of a rollout of one's own")
    if filters(settings) and sampling_of(settings) is None:
        settings.doubt("filters", "groups that a filter drops and that are sampled again")
    served = teaching.serves(settings)
    if teaching.asks_a_server(settings) and not served:
        name = "distils" if settings.on("distils") else "estimator"
        settings.doubt(name, f"passes of a teacher on servers of its own; {SERVICE}")
    for name, what in (
        ("partial_rollout", "responses that are cut off and go on in a later step"),
        ("reward_server", f"rewards that a server gives; {SERVICE}"),
    ):
        given = name == "reward_server" and settings.is_given(name) and not served
        if given or (name != "reward_server" and settings.on(name)):
            settings.doubt(name, what)


def _sizes(settings: Settings, ways: Ways, role: Role, gpus: int) -> TrainerSizes:
    if _is_served(settings, role):
        return teaching.sizes_of(settings)
    own = settings.of(ways.trainer, role)
    apart = role == "critic" and ways.critic_gpus > 0
    sizes = (
        role_sizes(own, ways.critic_gpus, CRITIC_POOL)
        if apart
        else role_sizes(own, gpus, TRAIN_POOL)
    )
    granularity = "full" if own.on("checkpoints") else own.value("granularity")
    recompute: Recompute = "none" if granularity is None else cast(Recompute, granularity)
    recompute = recomputed_parts(own) if recompute == "selective" else recompute
    away = _train_leaves(settings, ways) or sizes.offload
    return replace(
        sizes,
        expert_tp=own.optional_whole("expert_tp") if _has_experts(settings, sizes) else None,
        infer_token_budget=sizes.token_budget,
        recompute=recompute,
        # The reference's weights are copied over the actor's, and lie in host memory (utils/tensor_backper.py).
        offload=role in ONLY_READ or away,
        infer_offload=True if role in ONLY_READ else None,
    )


def _has_experts(settings: Settings, sizes: TrainerSizes) -> bool:
    return sizes.ep > 1 or (settings.optional_whole("num_experts") or 0) > 0


def _train_leaves(settings: Settings, ways: Ways) -> bool:
    """Tell whether the trainer's states leave the GPUs between uses: with a critic they do, if nothing keeps them."""
    critic = settings.word("estimator") == PPO and not ways.critic_gpus
    if settings.on("keeps_train"):
        return critic and ways.critic_leaves
    return critic or _leaves(settings, "train")


def _rollout_leaves(settings: Settings) -> bool:
    """Tell whether the engine's weights and caches leave the GPUs between uses."""
    return not settings.on("keeps_rollout") and _leaves(settings, "rollout")


def _leaves(settings: Settings, what: str) -> bool:
    return any(settings.on(each) for each in ("offload", f"offload_{what}", "colocate"))


def _options(settings: Settings, ways: Ways, role: Role) -> TrainerOptions:
    """Return how a role's trainer keeps its states: all of them leave where the trainer is off-loaded."""
    own = settings.of(ways.trainer, role)
    copied = role != "actor" or not own.on("without_host_copy")
    share = _linear_share(settings, ways)
    logits = ways.logits if role == "actor" else None
    options = replace(trainer_options(own, logits), linear_attention=share, host_copy=copied)
    return replace(options, offloads=None) if _train_leaves(settings, ways) else options


def _linear_share(settings: Settings, ways: Ways) -> LinearShare:
    """Return what of linear attention ranks compute: those of a framework's own layers share no heads.

    A model that Megatron-Bridge makes has Megatron's layers, whatever specification stands beside it (model_provider.py).
    """
    spec = settings.value("spec")
    words = spec if isinstance(spec, list) else str(spec).split()
    named = any(str(word).rpartition(".")[2] in OWN_LINEAR for word in words)
    bridged = settings.value("bridge") == BRIDGE
    return ways.own_linear if named and not bridged and ways.trainer == MEGATRON else "heads"


def _generation(settings: Settings, pool: RunPool, under_way: int | None) -> TaskPlan:
    gpus, pp = settings.whole("rollout_tp"), settings.whole("engine_pp")
    engines = divided(settings, settings.key_of("rollout_tp"), pool.gpus, gpus)
    tp = divided(settings, settings.key_of("engine_pp"), gpus, pp)
    ep, groups = _engine_ep(settings, tp), settings.whole("engine_dp")
    if settings.on("dp_attention") and groups > 1:
        if ep == 1 and tp % groups == 0 and _expert_model(settings):
            ep = tp
            settings.leave_out("dp_attention", CUT_EXPERTS)
        if ep == tp and tp % groups == 0:
            # attention of each group's requests, experts over all of the engine's ranks
            tp //= groups
        else:
            settings.leave_out("dp_attention", "attention that groups of ranks share by requests")
    width = max(1, gpus // pp // ep)
    sharing = gpus // pp // tp
    dp = engines * sharing
    most = _running(settings, sharing)
    return TaskPlan(
        pool=pool.name,
        engine=ENGINE,
        tp=tp,
        pp=pp,
        dp=dp,
        ep=ep,
        expert_tp=width if ep > 1 else None,
        max_running=most if under_way is None else min(most, math.ceil(under_way / dp)),
        memory_fraction=settings.number("rollout_memory"),
    )


def _running(settings: Settings, sharing: int) -> int:
    """Return how many sequences a group of an engine's ranks decodes at a time at most.

    Both limits are of a whole engine: its client has so many requests under way at each (rollout/sglang_rollout.py: the
    semaphore is sglang_server_concurrency x engines), and groups that share its attention out by requests have as large a
    part of max_running_requests each (sglang/srt, tp_worker.py and model_runner.py: // dp_size).

    Args:
        sharing: Groups of an engine.
    """
    limits = (settings.optional_whole("rollout_running"), settings.whole("concurrency"))
    return max(1, min(math.ceil(each / sharing) for each in limits if each is not None))


def _expert_model(settings: Settings) -> bool:
    """Tell whether the actor has experts, by the flags that write it out or by its sheet."""
    if (settings.optional_whole("num_experts") or 0) > 0:
        return True
    sheet = written_model(settings).sheet
    return sheet is not None and load_model(sheet).num_experts > 0


def _engine_ep(settings: Settings, tp: int) -> int:
    """Return over how many ranks an engine's experts lie: all of its tensor-parallel ones where tokens are sent to them.

    That is whatever `ep-size` says (sglang/srt/server_args.py, `_handle_a2a_moe`; up to 0.4.9 by switches).
    """
    sent = [name for name in ("engine_sends", "engine_deepep") if settings.value(name) not in OFF]
    for name in sent:
        settings.leave_out(name, "how fast the engine's kernels send tokens to experts")
    given = settings.whole("engine_ep")
    return tp if sent or settings.on("engine_ep_moe") else given


def _graph_sequences(settings: Settings) -> int | None:
    """Return up to how many sequences the engine's steps are in CUDA graphs, where flags say it; 0 for none.

    A list of sizes counts before the largest (sglang/srt/server_args.py).
    """
    sizes, most = settings.value("graph_sizes"), settings.optional_whole("graph_most")
    listed = [each for each in (sizes if isinstance(sizes, list) else [sizes]) if each is not None]
    if settings.on("without_graphs"):
        return 0
    return (
        max(settings.as_whole(settings.sheet.settings["graph_sizes"], each) for each in listed)
        if listed
        else most
    )


def _precision(settings: Settings) -> Precision:
    if settings.value("fp8") is not None:
        return cast(Precision, settings.word("fp8_recipe"))
    return "fp16" if settings.on("fp16") else "bf16"


def _loss(settings: Settings) -> Hyperparameters:
    reward = settings.number("kl_reward_weight")
    kind: KlPlace = "reward" if reward else "loss" if settings.on("kl_loss") else "none"
    weight = reward or (settings.number("kl_loss_weight") if settings.on("kl_loss") else 0.0)
    losses = given_losses(settings, algorithm(settings))
    if "teacher" in _roles(settings):
        coefficient = settings.number("teacher_weight")
        if coefficient < 0:
            raise settings.refused("teacher_weight", "is no weight of a teacher", "at least 0")
        losses["teacher_coefficient"] = coefficient
    return Hyperparameters(
        **losses,
        temperature=settings.number("temperature") or 1.0,
        **kl_place(kind, weight),
    )


def _notes(settings: Settings, named: str, written: WrittenModel, copies: int) -> Iterator[str]:
    if written.own is not None and written.cut:
        yield CUT_NOTE.format(written.own.num_layers, written.sheet)
    elif written.own is not None:
        why = (
            UNKNOWN_NOTE.format(named)
            if written.sheet is None
            else OTHER_NOTE.format(written.sheet)
        )
        yield WRITTEN_NOTE.format(why)
    if teaching.serves(settings):
        yield teaching.ASKED_LATE
    for name in ("filters", "begun_prompts") if never_stops(settings) else ():
        if settings.is_given(name):
            yield f"{settings.key_of(name)} {NO_FILTER}"
    if not says_updates(settings):
        size = settings.of(MEGATRON, "actor").whole("micro_batch") * copies
        yield BATCH_NOTE.format(size)


def _guesses(settings: Settings, work: Work, sampling: DynamicSampling | None) -> Iterator[str]:
    """Yield what was assumed of the amount of work."""
    for gap in _counted(settings)[:1]:
        yield GPUS_GUESS.format(GPUS_OF_A_NODE, gap.line)
    if settings.value("max_prompt") is None and settings.value("max_total") is None:
        yield PROMPT_GUESS.format(USUAL_LONGEST_PROMPT, settings.key_of("max_prompt"))
    if sampling is not None:
        yield sampling_guess(sampling, work.prompts)


def one_off(settings: Settings) -> Mapping[str, Any] | None:
    """Return the mode of a start that generates one batch ahead; None where it is another."""
    if not is_async(settings):
        return None
    if settings.whole("sync_interval") > 1:
        settings.leave_out("sync_interval", "weights that are synced less often than learnt")
    return {"mode": BATCH_AHEAD_MODE, "staleness": 1.0}


def batch_of(settings: Settings) -> int:
    """Return the samples that a step learns from."""
    return max(1, settings.whole("prompts") * settings.whole("samples"))


def steps_ahead(settings: Settings, held: int) -> float:
    """Return how many steps ahead samples are begun, at most `MOST_AHEAD`, where so many are held; where it is more, it is noted.

    Args:
        held: Samples that run, and that wait behind them.
    """
    ahead = 1 + held / batch_of(settings)
    if ahead > MOST_AHEAD:
        settings.notes = tuple(dict.fromkeys((*settings.notes, AHEAD_NOTE)))
    return min(ahead, MOST_AHEAD)


def endless(staleness: float, in_flight: str) -> Mapping[str, Any]:
    """Return the mode of a rollout that never stops."""
    return {"mode": ENDLESS_MODE, "staleness": float(math.ceil(staleness)), "in_flight": in_flight}
