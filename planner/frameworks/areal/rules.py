"""What AReaL finds only when a run starts: inclusionAI/AReaL@4aef98d8d, below `areal/`."""

from collections.abc import Iterator
from typing import Final

from rlplan.planner.configs.broken import Broken, Rule, actor_of, divides, unless
from rlplan.planner.configs.reading.settings import Settings, is_on
from rlplan.planner.frameworks.areal.allocation import ARCHON, FSDP, MEGATRON
from rlplan.planner.frameworks.areal.reading import (
    AWEX,
    DISK,
    actor_allocation,
    is_first,
    of_role,
    role_allocation,
    roles_of,
    rollout_allocation,
    takes_turns,
    together_of,
)

ALLOCATIONS: Final = "api/alloc_mode.py"
TRAINER: Final = "trainer/rl_trainer.py"
CONFIG: Final = "api/cli_args.py"
ENGINE: Final = "engine/fsdp_engine.py"
TREES: Final = "models/tree_attn/tree.py and docs/en/reference/tree_training.md"
TREE_BLOCK_TOKENS: Final = 128


def _backend_of(settings: Settings, name: str) -> str:
    """Return the setting that lays a role out."""
    return "allocation" if together_of(settings) is not None else name


def fsdp_has_no_stages_and_experts(settings: Settings) -> Iterator[Broken]:
    """Cut layers into stages, and share experts out, by Megatron or Archon alone."""
    for role in roles_of(settings):
        own = role_allocation(settings, role)
        holds = own.backend != FSDP or (own.pp == 1 and own.ep == 1)
        problem = f"gives FSDP pipelines or expert ranks for the {role}"
        name = _backend_of(settings, f"{role}_backend")
        yield from unless(holds, name, problem, "d, t and c alone, or megatron, archon")


def engines_have_their_gpus(settings: Settings) -> Iterator[Broken]:
    """Give all engines together no more GPUs than the cluster has."""
    nodes = settings.given("cluster.n_nodes")
    if not isinstance(nodes, int) or isinstance(nodes, bool):
        return
    gpus = nodes * settings.whole("gpus_per_node")
    asked = actor_allocation(settings).gpus
    asked += 0 if takes_turns(settings) else rollout_allocation(settings).gpus
    if asked > gpus:
        problem = f"and GPUs of a node are {gpus}, and actor and engines take {asked}"
        allowed = f"nodes with {asked} GPUs"
        yield Broken(key="cluster.n_nodes", problem=problem, allowed=allowed, stops=False)


def first_engines_fill_their_nodes(settings: Settings) -> Iterator[Broken]:
    """Give generation and training of the first system all GPUs of its nodes."""
    if not is_first(settings):
        return
    gpus = settings.whole("nodes") * settings.whole("gpus_per_node")
    asked = actor_allocation(settings).gpus + rollout_allocation(settings).gpus
    problem = f"takes {asked} GPUs, and nodes have {gpus}"
    yield from unless(asked == gpus, "allocation", problem, f"sizes of {gpus} GPUs together")


def expert_ranks_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Share a stage's GPUs out to whole groups of experts."""
    own = actor_allocation(settings)
    width = own.expert_tp or own.tp
    holds = own.ep == 1 or divides(own.ep * width * own.pp, own.gpus)
    problem = f"shares experts out to {own.ep} ranks of width {width}, which do not divide {own.gpus} GPUs"
    name = _backend_of(settings, "actor_backend")
    yield from unless(holds, name, problem, "sizes that divide them")


def expert_ranks_divide_the_experts(settings: Settings) -> Iterator[Broken]:
    """Share experts out to ranks whose number divides them."""
    own, model = actor_allocation(settings), actor_of(settings)
    if model is None or not model.num_experts:
        return
    problem = f"does not divide {model.num_experts} experts over {own.ep} ranks"
    name = _backend_of(settings, "actor_backend")
    yield from unless(divides(own.ep, model.num_experts), name, problem, "a divisor")


def tensor_ranks_divide_the_heads(settings: Settings) -> Iterator[Broken]:
    """Give each tensor-parallel rank equally many heads."""
    model = actor_of(settings)
    if model is None:
        return
    for name, own in (
        ("actor_backend", actor_allocation(settings)),
        ("rollout_backend", rollout_allocation(settings)),
    ):
        problem = f"does not divide {model.num_heads} heads over {own.tp} ranks"
        yield from unless(
            divides(own.tp, model.num_heads), _backend_of(settings, name), problem, "a divisor"
        )


def chunks_want_stages(settings: Settings) -> Iterator[Broken]:
    """Interleave chunks of layers only where there are stages."""
    own = actor_allocation(settings)
    if own.backend == MEGATRON:
        role = of_role(settings, "actor")
        holds = role.whole("chunks") <= 1 or own.pp > 1
        yield from unless(holds, role.key_of("chunks"), "wants pipeline stages", "1")


def shared_gpus_take_weights_from_a_disk(settings: Settings) -> Iterator[Broken]:
    """Hand weights on by a disk, or AWEX, where generation is on the GPUs that train."""
    holds = not takes_turns(settings) or settings.word("update_mode") in {DISK, AWEX}
    yield from unless(holds, "update_mode", "is not for shared GPUs", DISK)


def what_leaves_its_gpus_is_switched_on(settings: Settings) -> Iterator[Broken]:
    """Switch off-loading on where anything leaves its GPUs."""
    leaves = takes_turns(settings) or any(
        of_role(settings, role).on("leaves") for role in roles_of(settings)
    )
    holds = not leaves or is_on(settings.given("enable_offload"))
    yield from unless(holds, "enable_offload", "is off, and engines leave their GPUs", "true")


def optimizers_are_known(settings: Settings) -> Iterator[Broken]:
    """Step by an optimizer that there is."""
    own = of_role(settings, "actor")
    given = own.value("optimizer")
    holds = given in {"adam", "sgd", "adam_bf16"}
    yield from unless(holds, own.key_of("optimizer"), "is not known", "adam, sgd, adam_bf16")


def experts_chosen_before_are_of_sglang(settings: Settings) -> Iterator[Broken]:
    """Hand on which experts were chosen from SGLang alone."""
    key = "rollout.return_routed_experts"
    holds = not is_on(settings.given(key)) or rollout_allocation(settings).backend != "vllm"
    yield from unless(holds, key, "is of SGLang alone", "false")


def adapters_have_a_rank(settings: Settings) -> Iterator[Broken]:
    """Give an adapter a rank."""
    holds = not settings.on("lora") or settings.whole("lora_rank") > 0
    yield from unless(holds, "lora_rank", "is no rank of an adapter", "at least 1")


def trees_have_what_they_need(settings: Settings) -> Iterator[Broken]:
    """Pack trees of prefixes into padded budgets of whole blocks, without ranks that share a sequence, and for no critic."""
    for role in roles_of(settings):
        own, sizes = of_role(settings, role), role_allocation(settings, role)
        if not own.on("shares_prompts"):
            continue
        key, budget = own.key_of("shares_prompts"), own.optional_whole("token_budget")
        yield from unless(role != "critic", key, "packs trees of a critic", "false")
        problem = f"packs trees for {sizes.cp} context-parallel ranks"
        yield from unless(sizes.cp == 1, key, problem, "false, or c1")
        staged = sizes.backend != MEGATRON and sizes.pp > 1
        yield from unless(not staged, key, f"packs trees for {sizes.pp} stages", "false, or p1")
        holds = budget is not None and budget > 0 and budget % TREE_BLOCK_TOKENS == 0
        problem = f"is no budget of a tree's blocks of {TREE_BLOCK_TOKENS} tokens"
        allowed = f"a multiple of {TREE_BLOCK_TOKENS}"
        yield from unless(holds, own.key_of("token_budget"), problem, allowed)
        if sizes.backend != ARCHON:
            padded = own.on("padded")
            yield from unless(padded, own.key_of("padded"), "leaves trees unpadded", "true")


RULES: Final = (
    Rule(fsdp_has_no_stages_and_experts, ALLOCATIONS),
    Rule(engines_have_their_gpus, "docs/en/reference/alloc_mode.md"),
    Rule(first_engines_fill_their_nodes, "realhf/experiments/common/common.py, of 0.3.0"),
    Rule(expert_ranks_divide_the_gpus, ALLOCATIONS),
    Rule(expert_ranks_divide_the_experts, "Megatron-Core, transformer/moe"),
    Rule(tensor_ranks_divide_the_heads, "engine/fsdp_utils/parallel.py, SGLang and vLLM"),
    Rule(chunks_want_stages, ALLOCATIONS),
    Rule(shared_gpus_take_weights_from_a_disk, TRAINER, since="1.0.4"),
    Rule(what_leaves_its_gpus_is_switched_on, TRAINER, since="1.0.4"),
    Rule(optimizers_are_known, ENGINE),
    Rule(experts_chosen_before_are_of_sglang, TRAINER, since="1.0.4"),
    Rule(adapters_have_a_rank, CONFIG),
    Rule(trees_have_what_they_need, TREES),
)
