"""A job: what to train, on what work, on which machines, within which limits. The file `job.yaml`."""

from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal

from annotated_types import Ge, Gt, Lt

from rlplan.dispatchers import DispatcherName
from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import (
    AtLeastOne,
    Fraction,
    NonNegative,
    NonNegativeInt,
    NotBool,
    Number,
    Positive,
    Share,
    Updates,
)
from rlplan.models import (
    Adapter,
    LearningRateSchedule,
    LinearShare,
    ModelArchitecture,
    OptimizerKind,
    Precision,
    TrainingPrecision,
)
from rlplan.sheets import DeviceSheet
from rlplan.transfers import TransitionName
from rlplan.units import bytes_per_second_from_gbps
from rlplan.workload import Environment, Evaluation, Lengths, Workload

Headroom = Annotated[float, Ge(0), Lt(1), NotBool()]


# The objective that weighs the age of samples: forecasts of jobs that name it say how far an iteration gets.
TIME_TO_SCORE: Final = "time-to-score"


@dataclass(frozen=True, slots=True, kw_only=True)
class Specs:
    """Hold limits that every plan must keep; None sets none.

    Attributes:
        iteration_seconds: Longest iteration.
        gpus: Most GPUs that the plan's pools hold together.
        cost_usd: Most money for one iteration.
        usd_per_hour: Most money for one hour of all the plan's GPUs.
        energy_joules: Most energy of one iteration.
        memory_headroom_fraction: Least share of every GPU's memory that stays free at its peak.
        staleness: Most iterations' updates that the weights which began a response may lack when it is
            learnt from. Without it only synchronous plans are looked at; 1 lets generation run one
            iteration ahead.
        run_seconds: Longest whole run of the job's `iterations`, with what is known of what comes beside them, and what is
            lost with spot nodes, on average.
    """

    iteration_seconds: Positive | None = None
    gpus: AtLeastOne | None = None
    cost_usd: Positive | None = None
    usd_per_hour: Positive | None = None
    energy_joules: Positive | None = None
    memory_headroom_fraction: Headroom | None = None
    staleness: Updates | None = None
    run_seconds: Positive | None = None

    @property
    def given(self) -> dict[str, float]:
        """Return the limits that are set, by name, in the order of the fields."""
        found = ((item.name, getattr(self, item.name)) for item in fields(self))
        return {name: limit for name, limit in found if limit is not None}


NO_SPECS = Specs()


JOB_VERSION = 1

Role = Literal["actor", "critic", "reference", "reward", "teacher", "cost", "cost_critic", "rule"]
KlPlace = Literal["reward", "loss", "none"]
LossMean = Literal["token", "sequence", "token-sum", "token-sum-norm", "sum"]
KlEstimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+"]
OldLogProb = Literal["engine", "trainer"]
Beta = Annotated[float, Ge(0), Lt(1), NotBool()]
# Weights that are drawn from a seed.
RANDOM = "random"
# What a trainer keeps of a model, as far as it can leave the GPUs.
State = Literal["weights", "gradients", "optimizer"]
# What of them a checkpoint holds.
KeptState = Literal["weights", "optimizer"]
# How a trainer computes a layer's experts.
ExpertOrder = Literal["grouped", "one by one"]
# What of a step CUDA graphs capture: parts of layers, what stands before experts (`router`), or all of it.
Captured = Literal["attention", "mamba", "mlp", "router", "experts", "iteration"]
WHOLE_STEP: Captured = "iteration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Say that nodes of a group may be taken away at any time, how often, and what brings others in their place.

    None of it has a usual value: rates differ by region, instance and week. Their price is the group's `usd_per_gpu_hour`.

    Attributes:
        loss_every_seconds: Mean time until one node is taken away.
        replacement_seconds: From a loss until another node is there, on average; it is not paid for meanwhile.
        start_seconds: From there until an engine on it can take weights and generate, or a trainer can start again: image,
            weights from disk, compiling.
    """

    loss_every_seconds: Positive
    replacement_seconds: NonNegative
    start_seconds: NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Describe equal nodes of one cluster.

    Attributes:
        gpu: Name of a device sheet, or the path of one's file (YAML, relative to the job's file).
        intra_node: Link inside a node, for people; its rate is the device sheet's.
        nvlink_domain_gpus: GPUs, of several nodes, that this link connects; None takes what the device
            sheet says, in equal parts: the largest number of whole nodes in it that divides the group.
        inter_node_gbps: Network of one node, all its cards together, one direction; None takes the
            device sheet's node, by its share of GPUs where this node has another number of them.
        network: Kind of that network where exchanges over it have a sheet of their own (`efa`); None is any other, of
            which the device's constants are. Nodes with one device have one kind.
        cpu_cores: Host cores of one node, for reward functions and environments; None as above.
        host_memory_bytes: Memory of one node's host; None as above.
        usd_per_gpu_hour: Price of one GPU, its share of the node included; None takes the device
            sheet's list price.
        spot: How its nodes come and go; None for nodes that stay. Needs `usd_per_gpu_hour`.
        ray_resource: Resource by which a Ray cluster that runs join tells these nodes apart; None takes
            the type of their GPUs, as Ray names it.
    """

    gpu: str
    gpus_per_node: AtLeastOne
    nodes: AtLeastOne = 1
    intra_node: str | None = None
    nvlink_domain_gpus: AtLeastOne | None = None
    inter_node_gbps: Positive | None = None
    network: str | None = None
    cpu_cores: AtLeastOne | None = None
    host_memory_bytes: AtLeastOne | None = None
    usd_per_gpu_hour: NonNegative | None = None
    spot: Spot | None = None
    ray_resource: str | None = None

    @property
    def gpus(self) -> int:
        """Return all GPUs of the group."""
        return self.gpus_per_node * self.nodes

    @property
    def linked_gpus(self) -> int:
        """Return how many GPUs, one after another, reach each other over the intra-node link."""
        return max(self.gpus_per_node, self.nvlink_domain_gpus or 0)

    @property
    def network_bytes_per_second(self) -> float:
        """Return each GPU's share of its node's network cards, one direction."""
        assert self.inter_node_gbps is not None, f"job was not resolved: no network of {self.gpu}"
        return bytes_per_second_from_gbps(self.inter_node_gbps) / self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeModel:
    """Say that the reward model generates: it judges each response by a text of its own, from which the reward is read.

    Attributes:
        response_tokens: Lengths of what it writes.
        instruction_tokens: What its prompts have beside the prompt and the response that they ask about.
        samples: Judgements of each response.
        engine: Engine that it generates with; None takes the job's.
        max_running: Sequences that a replica of it runs at a time at most.
        memory_fraction: Share of each GPU for it; None takes its engine's usual one.
    """

    response_tokens: Lengths
    instruction_tokens: NonNegativeInt = 0
    samples: AtLeastOne = 1
    engine: str | None = None
    max_running: AtLeastOne = 256
    memory_fraction: Fraction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Say how others' servers answer, which a job calls once for each response: a reward service, or a hosted model.

    None of it has a usual value but the price: it is a provider's, or measured on one's own service.

    Attributes:
        seconds_per_call: From a call to its answer, with as many others under way.
        concurrency: Calls that are under way at a time at most.
        usd_per_call: Price of a call; None is not known, and not counted.
    """

    seconds_per_call: Positive
    concurrency: AtLeastOne
    usd_per_call: NonNegative | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """Say what a teacher tells of a batch, and what serves it.

    Without it a teacher's pass is a trainer's, and tells how likely it finds each token that the actor sampled.

    Attributes:
        top_tokens: Likeliest tokens of each position of which it tells the log-probabilities, in place of the sampled
            one's, so that losses compare distributions; None tells the sampled one's. `all` compares whole
            distributions, micro-batch by micro-batch, on the GPUs that have both models' logits.
        engine: Engine that serves it, which takes each response as a prompt and answers with the prompt's
            log-probabilities; None for a pass as trainers make it.
        max_running: Responses that a replica of the engine works on at a time at most.
        memory_fraction: Share of each GPU for the engine; None takes its usual one.
        imbalance: With an engine: responses of the replica that answers most, over the mean of all. Above 1 where several
            teachers of one size share out prompts by domain, each with replicas of its own.
    """

    top_tokens: AtLeastOne | Literal["all"] | None = None
    engine: str | None = None
    max_running: AtLeastOne = 256
    memory_fraction: Fraction | None = None
    imbalance: Annotated[float, Ge(1), NotBool()] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """Say where rewards come from beside (or instead of) a reward model.

    Attributes:
        function: A built-in rule's name, or `path/to/file.py:name`, called as
            `name(prompt: str, response: str, row: dict) -> float`; a `compute_score` of verl or a reward
            function of TRL is called as these call it.
        function_weight: Factor of the rule's reward.
        model_weight: Factor of the reward model's score.
        cost_function: A rule like `function` whose number is a cost, for algorithms that keep costs
            under a limit.
        function_seconds_per_sample: What one call takes, when it was not profiled.
        limit_seconds: After which a call is ended, whose reward is then 0; functions with a limit run in
            processes of their own.
        limit_bytes: Memory that a call may take, on top of its process's own; one that wants more gets 0.
        judge: How the reward model generates; None where its score is one pass over each response.
        service: What rewards wait for beside, or instead of, a function's own seconds: a service that is called for each
            response. Its calls need no host core each.
        streamed: Whether a function is called for each response as soon as it has ended, while others
            are still generated, or for all of them after generation; None takes the framework's way.
    """

    function: str | None = None
    function_weight: Number = 1.0
    model_weight: Number = 1.0
    cost_function: str | None = None
    function_seconds_per_sample: NonNegative | None = None
    limit_seconds: Positive | None = None
    limit_bytes: AtLeastOne | None = None
    judge: JudgeModel | None = None
    service: Service | None = None
    streamed: bool | None = None

    @property
    def calls(self) -> bool:
        """Tell whether a function, or a service, is called for each response."""
        return self.function is not None or self.service is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameters:
    """Hold what the losses and optimizers need.

    Attributes:
        learning_rate: Of all models that are trained but critics; the highest, where it changes.
        schedule: How the learning rates change over the iterations; None keeps them.
        weight_decay: AdamW's, decoupled, of every weight; None is 0.
        betas: AdamW's, of the moments of first and second order; None is 0.9 and 0.999.
        epsilon: What AdamW adds to a denominator; None is 1e-8.
        kl_coefficient: Weight of the KL penalty towards the reference model.
        kl_in: Where that penalty goes: into every token's reward, or into the loss; None takes the
            algorithm's usual place.
        kl_estimator: Of that penalty in the loss: Schulman's k1, k2 or k3, with `+` the value of one and
            the gradient of k2; None takes the algorithm's usual one.
        kl_target: Mean KL of a response, in nats, at which an adaptive weight of the penalty aims; it
            begins with `kl_coefficient`. None keeps the weight.
        kl_horizon: Responses over which an adaptive weight changes; fewer change it faster.
        clip_ratio: PPO's clip of the probability ratio; None takes the algorithm's usual one.
        clip_ratio_high: Its clip upwards where that differs (DAPO's clip-higher); None is `clip_ratio`.
        clip_ratio_dual: Most that the ratio counts where the advantage is negative (dual clip); None is no
            limit.
        importance_cap: Most that a token's loss is weighed with, by the ratio of the trainer's probability
            to the engine's (truncated importance sampling, decoupled PPO); None weighs all tokens alike.
        loss_mean: What weighs the same in a policy's loss: every `token` of an update, or every
            `sequence`; or responses weigh by their length, `token-sum` as the mean of their sums,
            `token-sum-norm` over the longest allowed response as well; `sum` divides by nothing. None takes the algorithm's
            usual choice.
        gae_lambda: Lambda of generalised advantage estimation.
        teacher_coefficient: Weight, in every token's advantage, of what a teacher says of it; of jobs with one. At 0
            it is asked, and nothing is learnt from it.
    """

    learning_rate: Positive = 1e-6
    critic_learning_rate: Positive = 1e-5
    schedule: LearningRateSchedule | None = None
    weight_decay: NonNegative | None = None
    betas: tuple[Beta, Beta] | None = None
    epsilon: Positive | None = None
    kl_coefficient: NonNegative = 0.01
    kl_in: KlPlace | None = None
    kl_estimator: KlEstimator | None = None
    kl_target: Positive | None = None
    kl_horizon: Positive = 10_000.0
    clip_ratio: Fraction | None = None
    clip_ratio_high: Positive | None = None
    clip_ratio_dual: Annotated[float, Gt(1), NotBool()] | None = None
    importance_cap: Positive | None = None
    loss_mean: LossMean | None = None
    value_clip: Positive = 0.2
    discount: Fraction = 1.0
    gae_lambda: Fraction = 0.95
    entropy_coefficient: NonNegative = 0.0
    max_gradient_norm: Positive = 1.0
    temperature: Positive = 1.0
    teacher_coefficient: NonNegative = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Say how Safe-RLHF keeps the cost under its limit (Dai et al. 2023, arXiv:2310.12773, section 3.3).

    Attributes:
        cost_limit: Mean cost of a response that is allowed: -d of the paper.
        multiplier: Lagrange multiplier of the first iteration.
        multiplier_learning_rate: Step of its logarithm for each unit of cost above the limit.
        multiplier_max: It never grows beyond.
    """

    cost_limit: Number = 0.0
    multiplier: Positive = 1.0
    multiplier_learning_rate: Positive = 0.1
    multiplier_max: Positive = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrain:
    """Say which texts, as many as responses in every update, keep the actor's language: PPO-ptx (Ouyang 2022, eq. 2).

    Attributes:
        file: As `prompts_file`, with a `text` in each row; None makes texts up, for trials.
        coefficient: Weight of their negative log-likelihood per token.
    """

    file: str | None = None
    coefficient: NonNegative = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSampling:
    """Say how groups of equal rewards are replaced (Yu et al. 2025, DAPO, arXiv:2503.14476, section 3.2).

    Attributes:
        max_rounds: Global batches generated at most in an iteration; groups of equal rewards fill up the rest.
        expected_rounds: Rounds that forecasts count with.
    """

    max_rounds: AtLeastOne = 10
    expected_rounds: Annotated[float, Ge(1), NotBool()] = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlong:
    """Say how responses near the longest are punished (Yu et al. 2025, DAPO, eq. 13).

    Attributes:
        buffer_tokens: Length of the range below the longest response in which the penalty grows.
        penalty: What the longest response loses.
    """

    buffer_tokens: AtLeastOne
    penalty: NonNegative = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Say how often nodes fail, and what checkpoints and restarts cost; forecasts then give the goodput.

    Attributes:
        node_mtbf_seconds: Mean time between failures of one node; any node's failure stops the job.
        checkpoint_seconds: For which a checkpoint keeps training waiting.
        restart_seconds: From a failure until training goes on from the last checkpoint.
        checkpoint_every: Iterations between two checkpoints; None takes the best number.
    """

    node_mtbf_seconds: Positive
    checkpoint_seconds: NonNegative
    restart_seconds: NonNegative
    checkpoint_every: AtLeastOne | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Say how often a run writes what it trains to disk, what of it, and how fast that is.

    Forecasts count it beside the iterations' own seconds. How often nodes fail, and what is lost then, says `failures`.

    Attributes:
        every: Iterations from one checkpoint to the next; None for one after the last iteration alone.
        states: What is written of every model that is trained: whole weights, and what its optimizer steps.
        node_bytes_per_second: At which one node writes; None is not known. There is no usual one: it is a site's.
        total_bytes_per_second: Most that the disks take of all nodes together; None for no limit but the nodes'.
        in_background: Whether training goes on once states are in host memory, and they are written meanwhile.
    """

    every: AtLeastOne | None = None
    states: tuple[KeptState, ...] = ("weights", "optimizer")
    node_bytes_per_second: Positive | None = None
    total_bytes_per_second: Positive | None = None
    in_background: bool = False

    def due(self, iterations: int) -> int:
        """Return how many checkpoints a run of so many iterations writes; the last iteration has one."""
        return -(-iterations // self.every) if self.every else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptData:
    """Say how the prompts file is read.

    Attributes:
        column: Key of the prompt: a text, or a list of chat messages (`role`, `content`).
        split: Which part of a data set with several.
        chat: Whether texts too are put into the tokenizer's chat template, as the user's message.
        too_long: What becomes of prompts longer than the longest of `workload.prompt_tokens`: the
            run is refused, they are dropped, or their beginning is cut off.
    """

    column: str = "prompt"
    split: str = "train"
    chat: bool = False
    too_long: Literal["refuse", "drop", "cut"] = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Name the engine sheets that train and generate; None takes the device's usual one.

    Attributes:
        sleeps: Whether an engine that shares its GPUs gives weights and cache up while others work.
    """

    train: str | None = None
    generate: str | None = None
    sleeps: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOptions:
    """Say how a role's trainer keeps its states and makes its logits, where its engine's sheet leaves a choice.

    Attributes:
        weights: Format in which weights are kept; with it go gradients and optimizer states where nothing
            keeps a master copy. None takes the engine's own.
        logits: Name of a way in the engine's sheet (`memory.logit_ways`) in which log-probabilities and
            entropies are made; None takes the framework's or engine's usual one.
        logit_chunk_tokens: Tokens whose logits that way works on at a time; None takes the sheet's.
        optimizer: What is kept for every parameter that is stepped: Adam's two moments in the format of `weights`, or
            these and what rounding takes off (Kahan summation), all in bf16.
        offloads: States that leave the GPUs where a plan off-loads the model; None takes the framework's.
        host_optimizer: Share of the parameters whose optimizer states live in host memory for good, and are
            stepped there.
        host_states: Whether weights, gradients and optimizer states all live in host memory, from which layers come as
            they are needed (FSDP2's off-load policy).
        experts: How a layer's experts are computed: all in one grouped product, or one by one, as layers of
            transformers before 5.0 have them.
        dispatcher: How tokens reach experts on other ranks and come back (`rlplan/dispatchers/`); None takes the
            engine's usual way.
        overlaps_exchange: Whether that runs beside the computing of another micro-batch.
        overlaps_products: Whether ranks that share a product exchange its tensors in parts beside it (`tp_comm_overlap`
            of Transformer Engine), where each has a part of the sequence.
        overlaps_sends: Whether stages hand activations on beside computing, where they have several chunks of layers.
        popularity_spread: Standard deviation of how often experts of a layer are chosen, over its mean; 0 where they
            are balanced by force. None takes that of published traces.
        graphs: What of a step is captured in CUDA graphs, so that the host does not launch it kernel by kernel.
        freezes_tower: Whether the tower of a model that reads images does not learn: it has no backward pass.
        shares_prompts: Whether a micro-batch computes a prompt's tokens once for its samples, as trees of prefixes do
            (`rlplan.simulator.workload`), where the engine's sheet does not say so anyway.
        fills_budgets: Whether micro-batches of token budgets are padded to them.
        linear_attention: What of a gated delta network each rank of its layout computes: some heads, as Megatron's own layers;
            all heads of its context-parallel rank's tokens; or all heads of all tokens.
    """

    weights: TrainingPrecision | None = None
    logits: str | None = None
    logit_chunk_tokens: AtLeastOne | None = None
    optimizer: OptimizerKind = "adam"
    offloads: tuple[State, ...] | None = None
    host_optimizer: Share = 0.0
    host_states: bool = False
    experts: ExpertOrder = "grouped"
    dispatcher: DispatcherName | None = None
    overlaps_exchange: bool = False
    overlaps_products: bool = False
    overlaps_sends: bool = False
    popularity_spread: NonNegative | None = None
    graphs: tuple[Captured, ...] = ()
    freezes_tower: bool = False
    shares_prompts: bool = False
    fills_budgets: bool = False
    linear_attention: LinearShare = "heads"


USUAL_TRAINER = TrainerOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Say how an engine guesses tokens ahead, which the model checks in one step (Leviathan et al. 2023, arXiv:2211.17192).

    What is sampled stays as it is. How many tokens a step then gives is of a model, its draft and its texts, and falls as a
    policy leaves its draft behind: an input, which engines log. While it is not said, forecasts are of generation without.

    Attributes:
        draft_tokens: Guessed before each step of the model.
        acceptance_length: Tokens that such a step gives on average, its own one counted, as engines log it (vLLM: mean
            acceptance length; SGLang: accept len).
        acceptance: In its place: probability that a guess is accepted where those before it were.
        acceptance_by_position: In place of both: share of steps in which the first, second, ... guess is accepted, as
            engines log it (vLLM: per-position acceptance rate); as many as are guessed, or more.
        most_running: Running sequences of a replica up to which it guesses; with more a step is one without. None guesses
            always (vLLM: num_speculative_tokens_per_batch_size, with 0 for larger batches; TensorRT-LLM: max_concurrency).
        draft: Model that guesses, named as the job's models are; None for `layers`.
        layers: Layers of the model's own kind that guess a token: 1 is one of multi-token prediction, or EAGLE's; 0 is for
            guesses that no model makes, as those from n-grams of the prompt.
        draft_tp: Ranks that share the draft model; None is as many as share the model.
    """

    draft_tokens: AtLeastOne
    acceptance_length: Annotated[float, Ge(1), NotBool()] | None = None
    acceptance: Fraction | None = None
    acceptance_by_position: tuple[Fraction, ...] | None = None
    most_running: AtLeastOne | None = None
    draft: str | ModelArchitecture | None = None
    layers: NonNegativeInt = 1
    draft_tp: AtLeastOne | None = None

    @property
    def tokens_per_step(self) -> float | None:
        """Return the tokens that a step of the model gives on average; None where that is not known.

        Of guesses that are each accepted with probability a, k at a time: (1 - a^(k + 1)) / (1 - a) (Leviathan et al.
        2023, equation 1).
        """
        if self.acceptance_by_position is not None:
            return 1.0 + sum(self.acceptance_by_position[: self.draft_tokens])
        if self.acceptance_length is not None or self.acceptance is None:
            return self.acceptance_length
        return sum(self.acceptance**guess for guess in range(self.draft_tokens + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOffload:
    """Say how much host memory keeps of a KV cache what the GPUs have no room for, until an episode's next turn reads it.

    Attributes:
        replica_bytes: Of each replica of the engine, all its GPUs together (vLLM: kv_offloading_size, in GiB).
        cache_ratio: In its place: of the cache on the GPUs (SGLang: hicache_ratio).
    """

    replica_bytes: Positive | None = None
    cache_ratio: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSync:
    """Name the transitions that bring trained weights to generation; None takes the usual one.

    Attributes:
        shared_pool: Where both share GPUs.
        between_pools: Where generation has GPUs of its own.
    """

    shared_pool: TransitionName | None = None
    between_pools: TransitionName | None = None


USUAL_WEIGHT_SYNC = WeightSync()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Describe an RL training job before anything is decided about GPUs.

    Attributes:
        models: By role, a preset's name, the path of a Hugging Face config (file or folder,
            relative to the job's file), or an architecture written out. A resolved job has only
            architectures, and no trace files.
        weights: For `execute`: `random` draws all models' weights from the seed; or by role `random`, or a
            Hugging Face folder, its URL (`s3://...`) or id that the weights are read from. None takes those of the models that are
            named by a folder or an id.
        prompts_file: For `execute`: JSONL, parquet, or a folder with a data set, a `prompt` per row.
        prompt_data: How it is read; None takes the usual of `PromptData`.
        evaluation: How it looks, between iterations, at what the actor has learnt; None for not at all.
        iterations: Of the whole run, for its forecast time and cost; None where that is open. For `execute` its options say it.
        checkpoints: How often what is trained is written to disk, for forecasts; None counts none.
        teacher: What a teacher tells, and what serves it; None for the sampled tokens' log-probabilities by a pass.
        framework: Name of a framework sheet: whose steps are forecast and searched. `rlplan execute` runs
            those of `rlplan`.
        old_log_prob: Where the log-probabilities of the policy that generated come from: its `engine`, or a
            pass of the `trainer` over what was generated; None takes the framework's way.
        weight_sync: How trained weights reach generation; None takes the framework's way.
        adapters: By role of a model that is trained, the adapters that are trained in its place.
        trainers: By role, how its trainer keeps states and makes logits; roles without are as their engine has it.
        precision: Number format of the weights; None takes the device's usual one. In a narrow one
            linear layers' products are computed, and states kept as in bf16.
        rollout_precision: Number format of the weights that generate; None takes that of training's
            states.
        kv_cache: Number format of the engine's KV cache; None takes the engine's own, or that in which
            its activations are.
        kv_offload: How much of that cache goes on in host memory; None for none.
        speculation: How the engine guesses tokens ahead; None for it does not.
        quantised_at: Where the weights that generate become narrow: at the `sender`, so that fewer bytes
            move, or at the `receiver`, as engines do that quantise what they load.
        constraint: For algorithms that keep a cost under a limit; None takes the usual.
        pretrain: Texts mixed into the actor's updates, for algorithms that do that.
        dynamic_sampling: For algorithms that sample groups again; None takes the usual.
        overlong: A penalty for responses near the longest; None for none.
        failures: How often nodes fail; None forecasts iterations without failures.
        cluster: What is at hand; a plan may leave any of it unused.
        devices: Sheets of devices that are not in the catalog, by name; a resolved job holds those of
            the files that its cluster names.
        objective: What a search minimises: seconds, money or energy per token; or the time to a score, which forecasts then speak of
            too, under an assumption.
        specs: Limits that a search keeps.
    """

    version: Literal[1] = 1
    name: str = "job"
    algorithm: str
    models: FrozenDict[Role, str | ModelArchitecture]
    workload: Workload
    cluster: tuple[NodeGroup, ...]
    devices: FrozenDict[str, DeviceSheet] | None = None
    engines: Engines = Engines()
    framework: str = "rlplan"
    old_log_prob: OldLogProb | None = None
    weight_sync: WeightSync = USUAL_WEIGHT_SYNC
    adapters: FrozenDict[Role, Adapter] | None = None
    trainers: FrozenDict[Role, TrainerOptions] | None = None
    precision: Precision | None = None
    rollout_precision: Precision | None = None
    kv_cache: TrainingPrecision | Literal["fp8"] | None = None
    kv_offload: CacheOffload | None = None
    speculation: Speculation | None = None
    quantised_at: Literal["sender", "receiver"] = "receiver"
    rewards: Rewards | None = None
    teacher: Teacher | None = None
    hyperparameters: Hyperparameters = Hyperparameters()
    constraint: Constraint | None = None
    pretrain: Pretrain | None = None
    dynamic_sampling: DynamicSampling | None = None
    overlong: Overlong | None = None
    failures: Failures | None = None
    weights: Literal["random"] | FrozenDict[Role, str] | None = None
    prompts_file: str | None = None
    prompt_data: PromptData | None = None
    evaluation: Evaluation | None = None
    iterations: AtLeastOne | None = None
    checkpoints: Checkpoints | None = None
    tokenizer: str = "bytes"
    seed: NonNegativeInt = 0
    objective: str = "throughput"
    specs: Specs = NO_SPECS

    def architecture(self, role: str) -> ModelArchitecture:
        """Return the architecture of a role of a resolved job."""
        model = self.models[role]  # type: ignore[index]
        assert isinstance(model, ModelArchitecture), f"job was not resolved: {role} is {model!r}"
        return model

    def weights_of(self, role: str) -> str | None:
        """Return a Hugging Face folder or id with a role's weights, or `random`; None where nothing says it.

        A reference without weights of its own starts as the actor.
        """
        if self.weights is None or isinstance(self.weights, str):
            return self.weights
        found: str | None = self.weights.get(role)  # type: ignore[call-overload]
        return self.weights_of("actor") if found is None and role == "reference" else found

    def adapter(self, role: str) -> Adapter | None:
        """Return the adapters that are trained in place of a role's model; None where it is itself."""
        return self.adapters.get(role) if self.adapters else None  # type: ignore[call-overload]

    def trainer(self, role: str) -> TrainerOptions:
        """Return how a role's trainer keeps its states and makes its logits."""
        found = self.trainers.get(role) if self.trainers else None  # type: ignore[call-overload]
        return found or USUAL_TRAINER

    @property
    def judge(self) -> JudgeModel | None:
        """Return how the reward model generates; None where its score is a pass, or there is none."""
        return None if self.rewards is None else self.rewards.judge

    @property
    def top_tokens(self) -> int:
        """Return of how many of its likeliest tokens a teacher tells the log-probabilities.

        0 for the sampled one's alone, and where whole distributions are compared.
        """
        said = None if self.teacher is None else self.teacher.top_tokens
        return said if isinstance(said, int) else 0

    @property
    def compares_all(self) -> bool:
        """Tell whether whole distributions of the actor and its teacher are compared."""
        return self.teacher is not None and self.teacher.top_tokens == "all"

    @property
    def served_roles(self) -> tuple[Role, ...]:
        """Return the models for which an engine that generates answers, in place of a pass: a judge, a served teacher."""
        served = self.teacher is not None and self.teacher.engine is not None
        roles: dict[Role, bool] = {"reward": self.judge is not None, "teacher": served}
        return tuple(role for role, there in roles.items() if there)

    def serving_engine(self, role: Role) -> str | None:
        """Return the name of the engine that answers for a served model; None for any other."""
        if role not in self.served_roles:
            return None
        said = self.judge if role == "reward" else self.teacher
        return (said.engine if said is not None else None) or self.engines.generate

    @property
    def serves(self) -> bool:
        """Tell whether there are such."""
        return bool(self.served_roles)

    @property
    def environments(self) -> tuple[Environment, ...]:
        """Return what answers the model between its turns."""
        return self.workload.environments

    @property
    def host_cores(self) -> int | None:
        """Return the cores of all nodes together; None where no group of nodes says how many it has."""
        if all(group.cpu_cores is None for group in self.cluster):
            return None
        return sum((group.cpu_cores or 0) * group.nodes for group in self.cluster)

    @property
    def has_spot(self) -> bool:
        """Tell whether any of the cluster's nodes may be taken away."""
        return any(group.spot is not None for group in self.cluster)

    @property
    def gpus(self) -> int:
        """Return all GPUs of the cluster."""
        return sum(group.gpus for group in self.cluster)
