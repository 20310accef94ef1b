"""A framework's own part of a step, besides the passes that every trainer has; sheets `profiles/frameworks/NAME/steps/`."""

from dataclasses import dataclass
from typing import Literal

from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import AtLeastOne, NonNegative, NonNegativeInt, Positive, Updates
from rlplan.job import USUAL_WEIGHT_SYNC, Engines, Job, OldLogProb, Role, WeightSync
from rlplan.plan import InFlight, Recompute
from rlplan.trainers import State


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """Hold host work during which GPUs wait, as a sum of five terms.

    Attributes:
        seconds: Fixed, for any batch.
        seconds_per_token: For every token of the global batch, prompts included.
        seconds_per_sequence: For every sequence of the global batch, of any length.
        seconds_per_padded_token: For every token of the global batch when all sequences are padded to the longest
            that the job allows.
        seconds_per_sent_image_token: For every token of the images that the controller sends, as pixels: to each rank those of
            all prompts that it has a sample of, where samples lie at ranks by chance.
    """

    seconds: NonNegative = 0.0
    seconds_per_token: NonNegative = 0.0
    seconds_per_sequence: NonNegative = 0.0
    seconds_per_padded_token: NonNegative = 0.0
    seconds_per_sent_image_token: NonNegative = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """Say how much host memory a framework takes beside the states that a plan off-loads.

    Attributes:
        trainer_bytes: Libraries and runtime of the trainer's process on each GPU.
        engine_bytes: The same of the engine's process on each GPU, where the engine runs in a separate process.
        processes_by_role: Whether each role on a GPU has a separate trainer process.
        keeps_engine_weights: Whether a sleeping engine's weights lie in host memory until it wakes.
        keeps_actor_weights: Whether the actor's weights have a copy there at all times, besides what a plan off-loads.
        pinned_factor: Size of pinned blocks over the bytes that they hold.
        loads: Who reads a model whole before it is sharded: the `first` rank of a node, every rank where embedding
            and head are `tied` and else the first, every rank unless it is `sharded` fully, or `none`.
        loaded_bytes: Bytes of one parameter while the model is read.
        usable_fraction: Share of a node's memory above which processes are killed (Ray's memory monitor).
    """

    trainer_bytes: NonNegativeInt = 0
    engine_bytes: NonNegativeInt = 0
    processes_by_role: bool = False
    keeps_engine_weights: bool = False
    keeps_actor_weights: bool = False
    pinned_factor: Positive = 1.0
    loads: Literal["none", "first", "tied", "sharded"] = "none"
    loaded_bytes: NonNegativeInt = 0
    usable_fraction: Positive = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitChoice:
    """Name how log-probabilities and entropies are made, by the ways of an engine's sheet (`memory.logit_ways`).

    `entropy` comes before `cut`, `cut` before `reference`, and `reference` before `usual`. Where none of them is given, or the engine's sheet has
    no way of that name, the engine's own default holds.

    Attributes:
        usual: For any pass.
        reference: For passes of the reference model.
        cut: With tensor or context parallelism, which split the logits.
        entropy: For updates of a policy whose loss has entropies (`Hyperparameters.entropy_coefficient`).
        scaled: Whether a temperature other than 1 divides all logits into a tensor of their own, in fp32.
    """

    usual: str | None = None
    reference: str | None = None
    cut: str | None = None
    entropy: str | None = None
    scaled: bool = False


NO_HOST_TIME = HostTime()
USUAL_LOGITS = LogitChoice()
NO_HOST_USE = HostUse()
USUAL_ENGINES = Engines()


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkSheet:
    """Say what a framework does in a step, as far as frameworks differ in it.

    Attributes:
        title: Its name for people, with the trainer where it has several.
        aliases: Other names that a job may use.
        runs: Whether `rlplan execute` carries its steps out.
        engines: Defaults for jobs that name no engine; None is the device's usual one.
        newest_engine: What its newest release generates with, where a sheet is of earlier ones too, whose published runs have that of
            `engines`: the default of jobs that name none.
        old_log_prob: Where the log-probabilities of the policy that generated come from, if a job leaves
            it open.
        reuses_log_probs: Algorithms whose update takes its own log-probabilities for the old ones, without a pass for
            them, where a step has one update and rewards no penalty.
        weight_sync: How its trained weights reach the engine, if a job leaves it open.
        offloads: What leaves the GPUs where a plan off-loads a model that is trained, until it is used again.
        frozen_stay: Whether the frozen weights of a model that adapters train stay on the GPUs, where the trained ones leave them.
        swaps_reference: Whether a reference's weights are copied into the actor's while it scores, so that it has none of its own on the GPUs.
        quantised_stay: Whether narrow copies that a trainer makes of weights for its products stay on the GPUs between its passes.
        idle_bytes: What blocks of its trainer's allocator hold beyond tensors once it is emptied, when an engine wakes beside it.
        idle_narrow_bytes: The same where the trainer's products are in a narrow format.
        binds_host: Whether its processes take memory of their GPU's host alone: else what leaves the GPU may come to lie on it,
            where the GPU's memory is part of the host's (`DeviceSheet.extends_host`).
        to_host_bytes_per_second: The rate at which optimizer states reach the host's memory where that is neither
            pinned nor kept from step to step; None is the rate of the link, as into pinned memory.
        from_host_bytes_per_second: The rate at which they come back; None is the rate of the link.
        loads_for_step: Whether an optimizer's moments that are away come to the GPU, all of them, for its step alone, and leave it
            after each; else they come before an update's passes, as master copies of weights do.
        gathers_from_host: Whether weights of a model that only infers, where they leave the GPUs, are copied from the host's memory
            with each micro-batch, a layer's shard before it is gathered; else once before the passes.
        gathers_stored: Whether a reference's lie there in the format in which its trainers keep weights; else, and of reward models, in that
            of products.
        leaves_after_passes: Whether weights of a model that is trained, where they leave the GPUs, leave them after passes without an
            update too; and a reference's, but where every rank has a shard of them.
        collects_seconds: Of Python's collection of garbage, with which each move of weights between the GPUs and the host ends, and
            each of an optimizer's states: dense weights and parted experts have one each. Copies to the GPU go on beside it.
        unpinned: What goes there at that rate; gradients are copied where they are named, else they are made anew.
        logits: How it makes log-probabilities and entropies, if a job leaves it open.
        pads_counted: Whether micro-batches that are counted, and not packed up to a budget of tokens, are as wide as the
            longest sequence of a step's batch.
        recompute: What its trainer computes again in the backward pass, if nobody says it.
        balances_tokens: Whether sequences are shared out to data-parallel ranks by their tokens.
        token_budgets: Whether micro-batches can be packed up to a number of tokens.
        whole_budgets: Whether that number is always a multiple of the longest sequence.
        balances_updates: Whether tokens are balanced within each update; else only over the whole batch, and a rank's
            tokens of one update are left to chance.
        pads_packs: Whether a pipeline's packed micro-batches are padded to the fullest of a rank's batch.
        keeps_domains: Whether consecutive ranks are placed in one NVLink domain while it has room; otherwise, in a
            job on several domains, every group that spans nodes uses the network.
        filters_first: Whether passes for log-probabilities and values, where groups are sampled again, wait for all that an
            update learns from and leave out the others; else what each round sampled goes through them.
        samples_together: Whether groups that are sampled again begin beside those under way, as soon as one is left out; else
            each round waits for all of the one before.
        samples_whole_batches: Whether groups are sampled again in whole batches, of which what a step has no room for is dropped.
        streams_rewards: Whether the rewards of finished responses are computed while others generate.
        in_flight: What becomes of its responses under way when new weights come, in mode async, if a plan
            leaves it open.
        bounds_ages: Whether its trainer waits, in mode async, for samples that would get too old; else only how many are
            begun ahead of training is bounded, and a long sample is learnt from whenever it ends.
        takes_batches: Whether an iteration, in mode async, waits for all prompts that were begun for it; else it takes
            the prompts that end first, and each update starts as soon as its own share has ended.
        limits_prompts: Whether no more prompts are under way, in mode async, than `staleness` batches have: the next one
            begins when all responses of another have ended, and its responses go to all replicas in turn.
        replica_prompts: Prompts that are under way for each replica at the most, in mode async: the next one begins when all
            responses of another have ended, and its responses go to all replicas in turn. None where nothing limits them.
        staleness: Default bound, in updates, on how old the generating weights may be when generation has its own
            GPUs; None where iterations run one after another.
        calls: Host time of handing a stage its data and collecting what it returns, by kind of task; that of a
            `transition` on one pool is what it takes to put the trainer away and wake the engine.
        keeps_blocks: Whether each role's process keeps the blocks of PyTorch's allocator on its GPUs while processes of other roles work there.
        readies_gradients: Whether a model that only infers has buffers for gradients too, where its engine keeps such.
        host: What it keeps of host memory.
        driver: Host time of a step that belongs to no stage: data, advantages, metrics, logging.
        stages: How many times as long its stages take as its engines' sheets say, by kind of work
            (`generation`, `inference`, `training`): what lies between kernels that the sheets do not name.
        stages_spread: Least relative spread of its stages where no site was calibrated, one sigma; as for any framework
            where it is smaller.
        sources: Origin of every figure and every choice.
    """

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    runs: bool = False
    engines: Engines = USUAL_ENGINES
    newest_engine: str | None = None
    old_log_prob: OldLogProb = "engine"
    reuses_log_probs: tuple[str, ...] = ()
    weight_sync: WeightSync = USUAL_WEIGHT_SYNC
    offloads: tuple[State, ...] = ("optimizer",)
    frozen_stay: bool = False
    swaps_reference: bool = False
    quantised_stay: bool = False
    idle_bytes: NonNegativeInt = 0
    idle_narrow_bytes: NonNegativeInt = 0
    binds_host: bool = True
    to_host_bytes_per_second: Positive | None = None
    from_host_bytes_per_second: Positive | None = None
    loads_for_step: bool = False
    gathers_from_host: bool = False
    gathers_stored: bool = False
    leaves_after_passes: bool = False
    collects_seconds: NonNegative = 0.0
    unpinned: tuple[Literal["weights", "gradients", "optimizer"], ...] = ("optimizer",)
    logits: LogitChoice = USUAL_LOGITS
    pads_counted: bool = False
    recompute: Recompute = "none"
    balances_tokens: bool = False
    token_budgets: bool = False
    whole_budgets: bool = False
    balances_updates: bool = True
    pads_packs: bool = False
    keeps_domains: bool = True
    filters_first: bool = False
    samples_together: bool = False
    samples_whole_batches: bool = False
    streams_rewards: bool = False
    in_flight: InFlight = "drain"
    bounds_ages: bool = True
    takes_batches: bool = False
    limits_prompts: bool = False
    replica_prompts: AtLeastOne | None = None
    staleness: Updates | None = None
    keeps_blocks: bool = False
    readies_gradients: bool = False
    calls: FrozenDict[str, HostTime] = FrozenDict()
    driver: HostTime = NO_HOST_TIME
    host: HostUse = NO_HOST_USE
    stages: FrozenDict[str, Positive] = FrozenDict()
    stages_spread: NonNegative = 0.0
    sources: FrozenDict[str, str]

    def leaving(self, job: Job, role: Role) -> tuple[State, ...]:
        """Return which states of a role that is trained leave the GPUs where a layout off-loads them; weights under adapters may stay."""
        own = job.trainer(role).offloads
        leaving = self.offloads if own is None else own
        stays = self.frozen_stay and job.adapter(role) is not None
        return tuple(state for state in leaving if not (stays and state == "weights"))

    def call(self, kind: str) -> HostTime:
        """Return the host time of a stage of one kind."""
        return self.calls.get(kind, NO_HOST_TIME)
