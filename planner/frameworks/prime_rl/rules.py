"""What prime-rl finds only when its parts start: PrimeIntellect-ai/prime-rl@559b44772, packages/prime-rl-configs/src/."""

from collections.abc import Iterator
from typing import Final

from rlplan.planner.configs.broken import (
    Broken,
    Rule,
    actor_of,
    divides,
    keys_are_known,
    unless,
)
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.frameworks.prime_rl.reading import (
    FILE_SYSTEM,
    SEVERAL,
    has_adapter,
    of_actor,
    packs_itself,
    rollout_gpus,
    section_is_on,
    train_gpus,
)

RL: Final = "prime_rl/configs/rl.py"
TRAINER: Final = "prime_rl/configs/trainer.py"
ORCHESTRATOR: Final = "prime_rl/configs/orchestrator.py"
SHARED: Final = "prime_rl/utils/validation.py"
OWN_LAYERS: Final = ("custom", "auto")


def _impl(settings: Settings) -> object:
    return settings.given("trainer.model.impl") or "auto"


def batches_are_of_whole_groups(settings: Settings) -> Iterator[Broken]:
    """Learn from all samples of a prompt at once."""
    batch, group = settings.whole("batch"), settings.whole("samples")
    problem = f"is not of whole groups of {group}"
    yield from unless(divides(group, batch), "batch", problem, f"a multiple of {group}")


def engines_fill_their_gpus(settings: Settings) -> Iterator[Broken]:
    """Fill the GPUs that generate with whole copies of the engine."""
    gpus, tp = rollout_gpus(settings), settings.whole("rollout_tp")
    problem = f"does not divide the {gpus} GPUs that generate"
    yield from unless(divides(tp, gpus), "rollout_tp", problem, f"divisors of {gpus}")


def gpus_are_of_one_node(settings: Settings) -> Iterator[Broken]:
    """Train and generate on the GPUs that a node has."""
    if settings.word("kind") == SEVERAL:
        return
    node, asked = settings.whole("gpus_per_node"), train_gpus(settings) + rollout_gpus(settings)
    problem = f"and those that generate are {asked}, of {node} in the node"
    yield from unless(asked <= node, "train_gpus", problem, f"{node} together, or several nodes")


def several_nodes_want_slurm(settings: Settings) -> Iterator[Broken]:
    """Start parts on several nodes by Slurm alone."""
    several = settings.word("kind") == SEVERAL
    holds = not several or any(settings.has("slurm*"))
    yield from unless(holds, "kind", "is started by Slurm alone", "[slurm] beside it")


def sequence_ranks_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Cut sequences over ranks that divide the GPUs that train."""
    own, gpus = of_actor(settings), train_gpus(settings)
    ranks = own.whole("cp")
    problem = f"does not divide the {gpus} GPUs that train"
    yield from unless(divides(ranks, gpus), own.key_of("cp"), problem, f"divisors of {gpus}")


def sequence_ranks_want_its_own_layers(settings: Settings) -> Iterator[Broken]:
    """Cut sequences in its own layers, with FlashAttention."""
    own = of_actor(settings)
    if own.whole("cp") == 1:
        return
    attention = str(settings.given("trainer.model.attn") or "auto")
    holds = attention == "auto" or attention.startswith("flash_attention")
    problem = "cannot be cut over ranks"
    yield from unless(holds, "trainer.model.attn", problem, "flash_attention_2, 3 or 4, auto")
    layers = _impl(settings)
    yield from unless(layers in OWN_LAYERS, "trainer.model.impl", problem, "custom, auto")


def experts_want_its_own_layers(settings: Settings) -> Iterator[Broken]:
    """Share experts out to ranks in its own layers, whose number divides them."""
    own, model = of_actor(settings), actor_of(settings)
    given = own.value("ep")
    if given in {"auto", 1} or not isinstance(given, int):
        return
    problem = "shares no experts out to ranks"
    yield from unless(_impl(settings) in OWN_LAYERS, "trainer.model.impl", problem, "custom, auto")
    if model is not None and model.num_experts:
        problem = f"does not divide {model.num_experts} experts"
        holds = divides(given, model.num_experts)
        yield from unless(holds, own.key_of("ep"), problem, "a divisor")


def offloading_is_of_one_kind(settings: Settings) -> Iterator[Broken]:
    """Keep states on the host in one way."""
    own = of_actor(settings)
    full = section_is_on(settings, "full_offload")
    ways = [own.on("cpu_offload"), own.on("optimizer_offload"), full]
    problem = "is on beside another way to keep states on the host"
    key = "full_offload" if full else own.key_of("cpu_offload")
    yield from unless(sum(ways) < 2, key, problem, "one of them")  # noqa: PLR2004 -- two ways at once


def activations_wait_on_the_host_once_checkpointed(settings: Settings) -> Iterator[Broken]:
    """Let inputs of layers wait on the host only where layers are computed again."""
    waits = settings.is_given("recompute_offload") or any(
        settings.has("trainer.model.ac_offloading.*")
    )
    holds = not waits or section_is_on(settings, "checkpoints")
    yield from unless(holds, "recompute_offload", "wants trainer.model.ac", "[trainer.model.ac]")


def adapters_go_over_files(settings: Settings) -> Iterator[Broken]:
    """Hand adapters on by files: ways in memory have none."""
    given = settings.given(settings.key_of("broadcast"))
    holds = not has_adapter(settings) or given in {None, FILE_SYSTEM}
    yield from unless(holds, "broadcast", "hands no adapter on", FILE_SYSTEM)


def batches_are_of_samples_or_tokens(settings: Settings) -> Iterator[Broken]:
    """Count a step's samples or its tokens."""
    holds = not (settings.is_given("batch") and settings.is_given("token_batch"))
    yield from unless(holds, "token_batch", "is given beside batch_size", "one of them")


def parts_train_one_model(settings: Settings) -> Iterator[Broken]:
    """Give the trainer sequences that are as long as the orchestrator cuts them."""
    pack, most = settings.whole("pack"), settings.whole("max_total")
    if packs_itself(settings):
        return
    problem = f"is less than the {most} tokens that orchestrator.seq_len allows"
    yield from unless(pack >= most, "pack", problem, f"{most} and more")


def groups_divide_the_nodes(settings: Settings) -> Iterator[Broken]:
    """Shard over equal groups of nodes."""
    group, nodes = settings.optional_whole("nodes_of_group"), settings.optional_whole("train_nodes")
    if group is not None and nodes is not None:
        problem = f"does not divide {nodes} nodes"
        yield from unless(divides(group, nodes), "nodes_of_group", problem, f"divisors of {nodes}")


RULES: Final = (
    Rule(batches_are_of_whole_groups, ORCHESTRATOR),
    Rule(batches_are_of_samples_or_tokens, ORCHESTRATOR, since="0.5"),
    Rule(engines_fill_their_gpus, RL),
    Rule(gpus_are_of_one_node, RL, since="0.5"),
    Rule(several_nodes_want_slurm, RL, since="0.5"),
    Rule(groups_divide_the_nodes, RL, since="0.5"),
    Rule(sequence_ranks_divide_the_gpus, TRAINER),
    Rule(sequence_ranks_want_its_own_layers, TRAINER, since="0.6"),
    Rule(experts_want_its_own_layers, TRAINER, since="0.5"),
    Rule(offloading_is_of_one_kind, TRAINER, since="0.5"),
    Rule(activations_wait_on_the_host_once_checkpointed, TRAINER, since="0.5"),
    Rule(adapters_go_over_files, TRAINER),
    Rule(parts_train_one_model, SHARED),
    Rule(keys_are_known, RL),
)
