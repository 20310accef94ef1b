"""What this executor cannot do of what valid plans ask for, by name, checked before anything is started."""

from collections.abc import Iterator

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.errors import CapabilityError
from rlplan.executor.environments import environment_names
from rlplan.executor.model.building import BEHIND_TOWERS, FAMILIES, PRETRAINED_FAMILIES
from rlplan.executor.parallel.positions import TRAIN_ENGINES, shares_weights
from rlplan.executor.rollout.engines import DEFAULT_ENGINE, engine_module_names
from rlplan.executor.rollout.vllm_limits import VLLM, lacks_of_vllm
from rlplan.executor.workers.transports import TRANSPORTS
from rlplan.job import RANDOM
from rlplan.models import ModelArchitecture
from rlplan.plan import WHOLE_BATCH_MODES, Plan
from rlplan.replicas import (
    OPTION,
    ReplicaChoice,
    ReplicaDevices,
    ReplicaRange,
    Replicas,
    ReplicaSchedule,
    check_schedule,
)
from rlplan.rules import check_plan
from rlplan.rules.batches import unequal_parts
from rlplan.rules.layouts import cut_heads, divides_heads, divides_layers, divisors
from rlplan.rules.rule import Capability, listed, refuse_first
from rlplan.transfers import TRANSFERS
from rlplan.workload import Lognormal, can_have_mean, longest

HERE = "this executor"
EXPERT_FAMILIES = ("mixtral", "qwen3_moe")
BIASED_FAMILIES = ("qwen2",)
NORMED_FAMILIES = ("qwen3", "qwen3_moe")
# Fields that are silent for every model that this executor builds.
SILENT = (
    "layer_kinds",
    "window",
    "keys_are_values",
    "norms_per_part",
    "attention_details",
    "expert_details",
    "latent",
    "compressed",
    "block_index",
    "linear",
    "state_space",
    "vision_parameters",
    "layer_inputs",
    "block_layers",
    "streams",
    "laurel_rank",
    "feed_forward",
)
PRECISIONS = ("fp32", "bf16")
CPU = "cpu"
OWN = "rlplan"

GROWTH = Capability("responses that grow over a training")
ENVIRONMENTS = Capability("episodes in environments")
RESAMPLED = Capability("groups that are sampled again among responses that go on one by one")
BASELINES = Capability("greedy baselines beside responses that go on one by one")
PIPELINED_STREAMS = Capability("pipelined generation that hands responses on one by one")
INTERRUPTED = Capability("responses that new weights interrupt under this engine")
UNSYNCED = Capability("evaluations between two syncs of weights")
OVER_PROVISIONING = Capability("more responses begun than are learnt from")
FRAMEWORK = Capability("steps of another framework")
TOKEN_BUDGET = Capability("micro-batches of so many tokens")
JUDGES = Capability("reward models that generate")
SERVICES = Capability("reward services without a function that calls them")
SERVED_TEACHERS = Capability("teachers that an engine serves")
TOP_TOKENS = Capability("a teacher's likeliest tokens")
TEXTS = Capability("texts at hand in place of responses")
SPECULATION = Capability("guessing tokens ahead")
READS_APART = Capability("replicas of the engine that read prompts alone")
HOST_CACHE = Capability("a KV cache that goes on in host memory")
SHARED_ATTENTION = Capability("attention among a prompt's tokens once for its samples")
LENDING = Capability("GPUs that one side lends the other")
COMING_ENGINE = Capability("replicas that come and go under this engine")
ADAPTERS = Capability("training by adapters")
NUMBER_FORMAT = Capability("training in this number format")
ENGINE = Capability("running under this engine")
CUT_GENERATION = {
    "cp": Capability("context parallelism of generation"),
    "ep": Capability("expert parallelism of generation"),
}
BATCHES = Capability("batches that data-parallel ranks do not divide")
KV_COPIES = Capability("more tensor-parallel ranks than KV heads")
GENERATED_FORMAT = Capability("generating in a number format of its own")
EQUAL_STAGES = Capability("pipeline stages of unlike numbers of layers")
SHARD_GROUPS = Capability("states that are sharded over some of the copies")
EXPERT_GROUPS = Capability("experts shared out over other ranks than the data-parallel ones")
FAMILY = Capability("models of this family")
EXPERTS = Capability("experts in some families and none in others")
PLAIN_MLP = Capability("MLPs without a gate")
PARTS = Capability("layers of other parts than the family's own")
STREAMED = Capability("rewards while responses are still generated")
RETOKENIZING = Capability("models of different vocabularies")
TRANSPORT = Capability("this transport of weights between pools")
WEIGHT_SYNC = Capability("a framework's way to bring weights to the engine")


def check_runnable(plan: Plan, file: str = "plan") -> tuple[Task, ...]:
    """Return the plan's tasks in the dataflow's order if this executor runs all of them.

    Args:
        file: What to call the plan in messages.

    Raises:
        FileError: The plan breaks a rule; names the field and what is allowed.
        CapabilityError: The plan is valid, and asks for what this executor cannot do.
    """
    check_plan(plan, file=file)
    refuse_first(_lacks(plan), file)
    return tasks_of(load_algorithm(plan.job.algorithm), plan.job)


def check_coming(schedule: Replicas | ReplicaRange, plan: Plan, file: str = "plan") -> None:
    """Refuse replicas that come and go where this executor has them not.

    Args:
        schedule: How many; of devices, it is not asked how many of this plan's replicas they hold.

    Raises:
        FileError: The plan has no such replicas; names the field.
        CapabilityError: Says what is not done, and what is instead.
    """
    if isinstance(schedule, ReplicaDevices | ReplicaChoice):
        check_schedule(ReplicaSchedule(counts=((0, 1),)), plan, file)
    else:
        check_schedule(schedule, plan, file)
    refuse_first(_lacks_of_coming(plan), file)
    if isinstance(schedule, ReplicaChoice):
        schedule.range_of(plan)


def _lacks_of_coming(plan: Plan) -> Iterator[CapabilityError]:
    engine = plan.tasks["actor.generate"].engine
    if engine == VLLM:
        instead = f"its start beside replicas that generate was never tried: {DEFAULT_ENGINE}, or {OPTION} left out"
        yield COMING_ENGINE.lacked_by(HERE, "tasks.actor.generate.engine", engine, instead)


def _lacks(plan: Plan) -> Iterator[CapabilityError]:
    yield from _lacks_for_mode(plan)
    if plan.job.framework != OWN:
        instead = f"plan with `framework: {OWN}`, or run the plan with {plan.job.framework} itself"
        yield FRAMEWORK.lacked_by(HERE, "job.framework", plan.job.framework, instead)
    yield from _lacks_for_growth(plan)
    if plan.lending is not None:
        instead = "leave `lending` out: its forecast then has none either"
        yield LENDING.lacked_by(HERE, "lending.to", listed(plan.lending.to), instead)
    precision = plan.job.precision
    if precision not in (None, *PRECISIONS):
        runs = f"it runs {listed(PRECISIONS)}"
        yield NUMBER_FORMAT.lacked_by(HERE, "job.precision", precision, runs)
    for field in ("rollout_precision", "kv_cache"):
        value = getattr(plan.job, field)
        if value not in (None, precision):
            instead = f"it generates in the format that it trains in, {precision}"
            yield GENERATED_FORMAT.lacked_by(HERE, f"job.{field}", value, instead)
    yield from _lacks_for_rewards_and_guesses(plan)
    yield from _lacks_for_transition(plan)
    for task in tasks_of(load_algorithm(plan.job.algorithm), plan.job):
        if task.has_model:
            yield from _lacks_for_model(plan, task)
            yield from _lacks_for_layout(plan, task)
            yield from _lacks_for_settings(plan, task)
            if task.trains and plan.job.adapter(task.role) is not None:
                yield from _lacks_for_adapters(plan, task)
    yield from lacks_of_vllm(plan, on_cpu=plan.pool_of("actor.generate").device == CPU)


def _lacks_for_growth(plan: Plan) -> Iterator[CapabilityError]:
    """Yield why no lengths can be drawn for some iterations of a job whose responses grow."""
    lengths = plan.job.workload.response_tokens
    if not isinstance(lengths, Lognormal) or lengths.training_means is None:
        return
    if plan.job.iterations is None:
        instead = "say over how many iterations they grow"
        yield GROWTH.lacked_by(HERE, "job.iterations", "none", instead)
    for mean in lengths.training_means:
        if not can_have_mean(lengths, mean):
            field, most = "job.workload.response_tokens.training_means", longest(lengths)
            yield GROWTH.lacked_by(HERE, field, f"{mean:,g}", f"means lie from 1 to below {most:,}")


def _lacks_for_rewards_and_guesses(plan: Plan) -> Iterator[CapabilityError]:
    if plan.job.speculation is not None:
        instead = "it samples token by token"
        yield SPECULATION.lacked_by(HERE, "job.speculation", "on", instead)
    if plan.job.kv_offload is not None:
        instead = "it computes again what its cache gave up"
        yield HOST_CACHE.lacked_by(HERE, "job.kv_offload", "on", instead)
    if plan.job.prefill is not None:
        instead = "every replica reads its own prompts"
        yield READS_APART.lacked_by(HERE, "job.prefill", "on", instead)
    for role, options in (plan.job.trainers or {}).items():
        if options.shares_prompts:
            instead = "its trainers share prompts in all else, whatever a job says"
            yield SHARED_ATTENTION.lacked_by(
                HERE, f"job.trainers.{role}.shares_prompts", "true", instead
            )
    if plan.job.judge is not None:
        instead = "its reward models score in one pass"
        yield JUDGES.lacked_by(HERE, "job.rewards.judge", "on", instead)
    yield from _lacks_for_teachers(plan)
    rewards = plan.job.rewards
    if rewards is not None and rewards.service is not None and rewards.function is None:
        instead = "name the function that calls it under rewards.function"
        yield SERVICES.lacked_by(HERE, "job.rewards.service", "on", instead)
    if plan.job.rewards and plan.job.rewards.streamed:
        instead = "it calls functions when all responses are there"
        yield STREAMED.lacked_by(HERE, "job.rewards.streamed", "true", instead)


def _lacks_for_teachers(plan: Plan) -> Iterator[CapabilityError]:
    teacher, texts = plan.job.teacher, plan.job.workload.texts
    if teacher is not None and teacher.engine is not None:
        instead = "a teacher's pass is a worker's"
        yield SERVED_TEACHERS.lacked_by(HERE, "job.teacher.engine", teacher.engine, instead)
    if teacher is not None and teacher.top_tokens is not None:
        instead = "a teacher tells of sampled tokens"
        yield TOP_TOKENS.lacked_by(HERE, "job.teacher.top_tokens", teacher.top_tokens, instead)
    if texts is not None:
        instead = "it generates all responses"
        yield TEXTS.lacked_by(HERE, "job.workload.texts.share", texts.share, instead)


def _lacks_for_mode(plan: Plan) -> Iterator[CapabilityError]:
    if plan.flow.by_sample:
        yield from _lacks_for_streams(plan)
    if plan.job.workload.drops_responses:
        yield from _lacks_for_drops(plan)
    if plan.job.environments:
        yield from _lacks_for_environments(plan)


def _lacks_for_drops(plan: Plan) -> Iterator[CapabilityError]:
    """Yield what is lacking where more responses are begun than are learnt from."""
    algorithm, layout = load_algorithm(plan.job.algorithm), plan.tasks["actor.generate"]
    begun = plan.job.workload.begun_beyond
    if plan.flow.by_sample and "over_sampling" in begun:
        modes = " and ".join(WHOLE_BATCH_MODES)
        instead = f"in mode {plan.mode} it waits for all samples of a prompt: 1, or modes {modes}"
        field = "job.workload.over_sampling"
        yield OVER_PROVISIONING.lacked_by(HERE, field, begun["over_sampling"], instead)
    lacks = {"of episodes it waits for all": bool(plan.job.environments)}
    if plan.ends_generation_early:
        lacks |= {
            f"{layout.engine} samples whole responses here, engine {DEFAULT_ENGINE} goes on": layout.engine
            not in ("", DEFAULT_ENGINE),
            f"{algorithm.name} samples groups again, and waits for all": algorithm.resamples,
            f"{algorithm.name} generates greedy baselines beside, and waits for all": (
                algorithm.advantage == "greedy-baseline"
            ),
            "stages of a pipeline (tasks.actor.generate.pp above 1) wait for all": layout.pp > 1,
        }
    for why in (words for words, is_so in lacks.items() if is_so):
        for name, value in begun.items():
            yield OVER_PROVISIONING.lacked_by(HERE, f"job.workload.{name}", value, f"{why}: 1")


def _lacks_for_environments(plan: Plan) -> Iterator[CapabilityError]:
    field, environments = "job.workload.environments", plan.job.environments
    generate, algorithm = plan.tasks["actor.generate"], load_algorithm(plan.job.algorithm)
    for at, environment in enumerate(environments):
        if environment.source is None:
            names = f"{listed(environment_names())}, path/to/file.py:name, or a Gymnasium id"
            instead = f"it plays what `source` names: {names}"
            yield ENVIRONMENTS.lacked_by(HERE, f"{field}.{at}.source", "not given", instead)
        if environment.instances_each(generate.dp) == 0:
            instead = f"each of {generate.dp} replicas has some of its own: {generate.dp} or more"
            yield ENVIRONMENTS.lacked_by(
                HERE, f"{field}.{at}.instances", environment.instances, instead
            )
        if environment.inference != environments[0].inference:
            instead = f"all have one way: {environments[0].inference}"
            yield ENVIRONMENTS.lacked_by(
                HERE, f"{field}.{at}.inference", environment.inference, instead
            )
    ranks = generate.tp * generate.pp
    if ranks > 1:
        yield ENVIRONMENTS.lacked_by(
            HERE, "tasks.actor.generate.tp x pp", ranks, "a rank plays episodes alone: 1"
        )
    if generate.engine not in ("", DEFAULT_ENGINE):
        yield ENVIRONMENTS.lacked_by(
            HERE, "tasks.actor.generate.engine", generate.engine, f"it has {DEFAULT_ENGINE}"
        )
    if algorithm.advantage == "greedy-baseline":
        instead = "a greedy baseline would play every episode twice: another algorithm"
        yield ENVIRONMENTS.lacked_by(HERE, "job.algorithm", algorithm.name, instead)


def _lacks_for_streams(plan: Plan) -> Iterator[CapabilityError]:
    """Yield what is lacking in modes that hand responses on one by one."""
    algorithm, layout = load_algorithm(plan.job.algorithm), plan.tasks["actor.generate"]
    for lacks, capability in (
        (algorithm.resamples, RESAMPLED),
        (algorithm.advantage == "greedy-baseline", BASELINES),
    ):
        if lacks:
            instead = f"run {algorithm.name} in mode sync or one-step-off"
            yield capability.lacked_by(HERE, "mode", plan.mode, instead)
    evaluation = plan.job.evaluation
    if evaluation is not None and (evaluation.every or 0) % plan.sync_every:
        instead = f"what generates has new weights every {plan.sync_every} iterations: a multiple"
        yield UNSYNCED.lacked_by(HERE, "job.evaluation.every", evaluation.every, instead)
    if layout.pp > 1:
        instead = f"in mode {plan.mode} it runs 1 only"
        yield PIPELINED_STREAMS.lacked_by(HERE, "tasks.actor.generate.pp", layout.pp, instead)
    if plan.in_flight != "drain" and layout.engine not in ("", DEFAULT_ENGINE):
        instead = f"{layout.engine} samples whole responses here: drain, or engine {DEFAULT_ENGINE}"
        yield INTERRUPTED.lacked_by(HERE, "in_flight", plan.in_flight, instead)


def _lacks_for_transition(plan: Plan) -> Iterator[CapabilityError]:
    if TRANSFERS.load(plan.transition).method:
        runs = f"it runs {listed(TRANSFERS.names_of_files())}"
        yield WEIGHT_SYNC.lacked_by(HERE, "transition", plan.transition, runs)
    if plan.transport not in TRANSPORTS.names():
        runs = f"it has {listed(TRANSPORTS.names())}"
        yield TRANSPORT.lacked_by(HERE, "transport", plan.transport, runs)


def _lacks_for_layout(plan: Plan, task: Task) -> Iterator[CapabilityError]:
    layout, generates = plan.tasks[task.name], task.generates
    for name, capability in CUT_GENERATION.items() if generates else ():
        size = getattr(layout, name)
        if size > 1:  # a step of generation has one token of each sequence
            yield capability.lacked_by(HERE, f"tasks.{task.name}.{name}", size, "it runs 1 only")
    unequal = unequal_parts(task, layout.dp, plan.job)
    if unequal is not None:
        words, allowed = unequal
        instead = f"{layout.dp} {words}; allowed: {allowed}"
        yield BATCHES.lacked_by(HERE, f"tasks.{task.name}.dp", layout.dp, instead)
    model = plan.job.architecture(task.role)
    if not divides_heads(layout.tp, model):
        words, allowed = cut_heads(model, replicated=False)
        instead = f"{layout.tp} {words}; allowed: {allowed}"
        yield KV_COPIES.lacked_by(HERE, f"tasks.{task.name}.tp", layout.tp, instead)
    field, layers = f"tasks.{task.name}", model.num_layers
    if (
        not divides_layers(layout.pp, model)
        or layout.first_stage_layers
        or layout.last_stage_layers
    ):
        instead = (
            f"it runs stages of equally many of the {layers} layers: {listed(divisors(layers))}"
        )
        yield EQUAL_STAGES.lacked_by(HERE, f"{field}.pp", layout.pp, instead)
    if layout.dp % layout.ep or layout.expert_tp not in (None, layout.tp):
        instead = f"it runs divisors of the {layout.dp} data-parallel ranks, with expert_tp as tp"
        yield EXPERT_GROUPS.lacked_by(HERE, f"{field}.ep", layout.ep, instead)
    known = engine_module_names() if generates else TRAIN_ENGINES
    if layout.engine not in ("", *known):
        key = "generate" if generates else "train"
        instead = f"it has {listed(known)}; plan with `engines: {{{key}: ...}}` in the job"
        yield ENGINE.lacked_by(HERE, f"tasks.{task.name}.engine", layout.engine, instead)


def _lacks_for_adapters(plan: Plan, task: Task) -> Iterator[CapabilityError]:
    """Yield what is lacking to train a model by adapters."""
    model = plan.job.architecture(task.role)
    adapter, field = plan.job.adapter(task.role), f"job.adapters.{task.role}"
    assert adapter is not None
    if model.num_experts and adapter.targets != "attention":
        instead = "of models with experts it trains adapters of their `attention`"
        yield ADAPTERS.lacked_by(HERE, f"{field}.targets", adapter.targets, instead)
    if model.num_experts and plan.tasks[task.name].ep > 1:
        instead = "beside experts on every rank (ep 1)"
        yield ADAPTERS.lacked_by(HERE, f"tasks.{task.name}.ep", plan.tasks[task.name].ep, instead)
    if task.role != "actor":
        return
    engine = plan.tasks["actor.generate"].engine
    if engine not in ("", DEFAULT_ENGINE):
        instead = f"it generates with {DEFAULT_ENGINE}"
        yield ADAPTERS.lacked_by(HERE, "tasks.actor.generate.engine", engine, instead)
    if adapter.sync == "adapter" and not shares_weights(plan):
        instead = "where generation has a layout of its own it brings `merged` weights"
        yield ADAPTERS.lacked_by(HERE, f"{field}.sync", adapter.sync, instead)


def _lacks_for_settings(plan: Plan, task: Task) -> Iterator[CapabilityError]:
    layout, field = plan.tasks[task.name], f"tasks.{task.name}"
    if layout.token_budget is not None:
        instead = "it counts sequences: micro_batch"
        yield TOKEN_BUDGET.lacked_by(HERE, f"{field}.token_budget", layout.token_budget, instead)
    if layout.shard_ranks not in (None, layout.dp * layout.cp):
        copies = layout.dp * layout.cp
        instead = f"it shards over all {copies} copies"
        yield SHARD_GROUPS.lacked_by(HERE, f"{field}.shard_ranks", layout.shard_ranks, instead)


def _lacks_for_model(plan: Plan, task: Task) -> Iterator[CapabilityError]:
    model, field = plan.job.architecture(task.role), f"models.{task.role}"
    vocabulary = plan.job.architecture("actor").vocab_size
    if model.vocab_size < vocabulary:
        instead = f"the actor generates tokens up to {vocabulary - 1}"
        yield RETOKENIZING.lacked_by(HERE, f"{field}.vocab_size", model.vocab_size, instead)
    if plan.job.weights_of(task.role) not in (None, RANDOM):
        if model.family not in PRETRAINED_FAMILIES and model.family not in BEHIND_TOWERS:
            known = (*PRETRAINED_FAMILIES, *BEHIND_TOWERS)
            runs = f"of pre-trained models it runs {listed(known)}"
            yield FAMILY.lacked_by(HERE, f"{field}.family", model.family, runs)
        return  # what its folder's configuration says is what is built
    if model.family not in FAMILIES:
        runs = f"it runs {listed(FAMILIES)}; with pre-trained weights {listed(tuple(PRETRAINED_FAMILIES))}"
        yield FAMILY.lacked_by(HERE, f"{field}.family", model.family, runs)
    if bool(model.num_experts) != (model.family in EXPERT_FAMILIES):
        runs = f"it runs experts in {listed(EXPERT_FAMILIES)}, and {model.name} is a {model.family}"
        yield EXPERTS.lacked_by(HERE, f"{field}.num_experts", model.num_experts, runs)
    if not model.gated_mlp:
        yield PLAIN_MLP.lacked_by(HERE, f"{field}.gated_mlp", "false", "it runs gated ones")
    part = _other_part(model)
    if part:
        runs = f"it runs the layers of published {model.family} models, all alike"
        value = getattr(model, part)
        shown = value if isinstance(value, (bool, int, str)) else "given"
        yield PARTS.lacked_by(HERE, f"{field}.{part}", str(shown).lower(), runs)


def _other_part(model: ModelArchitecture) -> str | None:
    """Return a field that says that layers are not as this executor builds them, if there is one."""
    for field in SILENT:
        if getattr(model, field) is not None:
            return field
    for field, families in (("qkv_bias", BIASED_FAMILIES), ("qk_norm", NORMED_FAMILIES)):
        if getattr(model, field) != (model.family in families):
            return field
    return None if model.attention == "grouped-attention" else "attention"
