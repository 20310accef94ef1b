"""A job: what to train, on what work, on which machines, within which limits. The file `job.yaml`."""

from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal

from annotated_types import Ge, Gt, Lt

from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import (
    AtLeastOne,
    Fraction,
    NonNegative,
    NonNegativeInt,
    NotBool,
    Number,
    Positive,
    Updates,
)
from rlplan.models import (
    Adapter,
    LearningRateSchedule,
    ModelArchitecture,
    Precision,
    TrainingPrecision,
)
from rlplan.sheets import DeviceSheet
from rlplan.trainers import USUAL_TRAINER, TrainerOptions
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
# What of them a checkpoint holds.
KeptState = Literal["weights", "optimizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Say that the nodes of a group are spot nodes, how often they are taken away, and how long a replacement takes.

    There are no defaults: rates differ by region, instance and week. The price is the group's `usd_per_gpu_hour`.

    Attributes:
        loss_every_seconds: Mean time until one node is taken away.
        replacement_seconds: Mean time from a loss until another node has come; nothing is paid in between.
        start_seconds: From then until an engine on it can take weights and generate, or a trainer can start again: image,
            weights from disk, compilation.
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
        network: Kind of that network, if exchanges over it have their own sheet (`efa`); None takes the device's
            constants. All nodes with the same device have the same kind.
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
    """Describe a generative reward model: it writes a judgement of each response, and the reward is read from that text.

    Attributes:
        response_tokens: Lengths of its judgements.
        instruction_tokens: Tokens of its prompt besides the judged prompt and response.
        samples: Judgements of each response.
        engine: Engine that it generates with; None takes the job's.
        max_running: Limit on the running sequences of each replica.
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
    """Describe an external service that a job calls once for each response: a reward service, or a hosted model.

    Only the price has a default: the others are the provider's figures, or measured.

    Attributes:
        seconds_per_call: From a call to its answer, with `concurrency` calls under way.
        concurrency: Limit on the calls under way at a time.
        usd_per_call: Price of a call; None is unknown and not counted.
    """

    seconds_per_call: Positive
    concurrency: AtLeastOne
    usd_per_call: NonNegative | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """Say which log-probabilities a teacher gives, and which engine serves it.

    Without this, a teacher runs a forward pass in a trainer, and gives the log-probability of each sampled token.

    Attributes:
        top_tokens: Number of likeliest tokens at each position whose log-probabilities it gives, so that losses compare
            distributions; None gives the sampled token's only. `all` compares whole distributions, micro-batch by
            micro-batch, on the GPUs that have both models' logits.
        engine: Engine that serves it: each response is sent as a prompt, and the engine returns the prompt's
            log-probabilities. None is a forward pass in a trainer.
        max_running: Limit on the responses that each replica of the engine works on at a time.
        memory_fraction: Share of each GPU for the engine; None takes its usual one.
        imbalance: With an engine: responses of the busiest replica over the mean of all. Above 1 where several teachers
            of one size split the prompts by domain, each with its own replicas.
    """

    top_tokens: AtLeastOne | Literal["all"] | None = None
    engine: str | None = None
    max_running: AtLeastOne = 256
    memory_fraction: Fraction | None = None
    imbalance: Annotated[float, Ge(1), NotBool()] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """Say where rewards come from, besides or instead of a reward model.

    Attributes:
        function: A built-in rule's name, or `path/to/file.py:name`, called as
            `name(prompt: str, response: str, row: dict) -> float`; a `compute_score` of verl or a reward
            function of TRL is called as these call it.
        function_weight: Factor of the rule's reward.
        model_weight: Factor of the reward model's score.
        cost_function: A rule like `function` whose number is a cost, for algorithms that keep costs
            under a limit.
        function_seconds_per_sample: What one call takes, when it was not profiled.
        limit_seconds: Time limit of a call; beyond it the call is killed and its reward is 0. Functions with a limit run
            in separate processes.
        limit_bytes: Memory limit of a call, on top of its process's own memory; beyond it the reward is 0.
        judge: How the reward model generates; None where its score is one pass over each response.
        service: External service that is called for each response, besides or instead of a function. Its calls take no
            host core.
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
        loss_mean: How a policy's loss is averaged over an update: over every `token`; over every `sequence`, of which
            each is a mean over its tokens; `token-sum`: the mean over sequences of the sum over their tokens;
            `token-sum-norm`: the same over the longest allowed response; `sum`: not at all. None takes the algorithm's
            usual choice.
        gae_lambda: Lambda of generalised advantage estimation.
        teacher_coefficient: Weight of a teacher's log-probability in every token's advantage, in jobs with a teacher. At 0
            the teacher runs, and nothing is learnt from it.
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
        expected_rounds: Rounds that forecasts count with; None is the framework's usual (`rlplan.profiles.jobs.sampling`).
        batches_at_once: Global batches that one call generates, where a batch of generation has other prompts than that of an
            update. Rounds count global batches all the same, and at least so many are expected.
        filters_first: Whether passes for log-probabilities and values see only what an update learns from, not all that
            rounds sampled; None is the framework's usual (`FrameworkSheet`).
        together: Whether others begin as soon as a group is left out, all at a time; None is the framework's usual.
    """

    max_rounds: AtLeastOne = 10
    expected_rounds: Annotated[float, Ge(1), NotBool()] | None = None
    batches_at_once: Positive = 1.0
    filters_first: bool | None = None
    together: bool | None = None


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
        checkpoint_seconds: That training waits for a checkpoint.
        restart_seconds: From a failure until training continues from the last checkpoint.
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
        states: States that are written of every trained model: weights, optimizer states.
        node_bytes_per_second: Write rate of one node; None is unknown. It has no default, since it depends on the site.
        total_bytes_per_second: Limit on the write rate of all nodes together; None is no further limit.
        in_background: Whether training continues as soon as the states are copied to host memory.
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
        graph_sequences: Most sequences of a step for which the generating engine captures CUDA graphs: steps of more are launched
            kernel by kernel, and with 0 all are. None takes the engine's own.
    """

    train: str | None = None
    generate: str | None = None
    sleeps: bool = True
    graph_sequences: NonNegativeInt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Describe speculative decoding: draft tokens that the model verifies in one step (Leviathan et al. 2023, arXiv:2211.17192).

    The distribution of samples is unchanged. How many tokens a step gives depends on model, draft and texts, and falls as
    the policy moves away from its draft. It is an input, which engines log; without it, forecasts are of generation
    without speculation.

    Attributes:
        draft_tokens: Draft tokens of each step of the model.
        acceptance_length: Mean tokens of a step, the model's own token included, as engines log it (vLLM: mean acceptance
            length; SGLang: accept len).
        acceptance: Instead: probability that a draft token is accepted when all earlier ones were.
        acceptance_by_position: Instead of both: share of steps in which the first, second, ... draft token is accepted, as
            engines log it (vLLM: per-position acceptance rate); at least `draft_tokens` values.
        most_running: Running sequences of a replica up to which it drafts; steps with more have no draft. None is no limit
            (vLLM: num_speculative_tokens_per_batch_size, with 0 for larger batches; TensorRT-LLM: max_concurrency).
        draft: Draft model, named as the job's models are; None for `layers`.
        layers: Layers of the model's own kind that make a draft token: 1 for multi-token prediction, or EAGLE; 0 for
            drafts without a model, such as n-grams of the prompt.
        draft_tp: Tensor-parallel ranks of the draft model; None is those of the model.
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
class PrefillApart:
    """Say how many replicas of the engine read prompts alone, and hand their cache to those that write (prefill apart from decode).

    Attributes:
        replicas: Of those of generation, each with the layout of the others; the rest write.
    """

    replicas: AtLeastOne


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSync:
    """Name the transitions that bring trained weights to generation; None takes the usual one.

    Attributes:
        shared_pool: When training and generation share GPUs.
        between_pools: When generation has separate GPUs.
    """

    shared_pool: TransitionName | None = None
    between_pools: TransitionName | None = None


USUAL_WEIGHT_SYNC = WeightSync()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Describe an RL training job, before a plan assigns its GPUs.

    Attributes:
        models: By role, a preset's name, the path of a Hugging Face config (file or folder,
            relative to the job's file), or an architecture written out. A resolved job has only
            architectures, and no trace files.
        weights: For `execute`: `random` draws all models' weights from the seed; or by role `random`, or a
            Hugging Face folder, its URL (`s3://...`) or id that the weights are read from. None takes those of the models that are
            named by a folder or an id.
        prompts_file: For `execute`: JSONL, parquet, or a folder with a data set, a `prompt` per row.
        prompt_data: How it is read; None takes the usual of `PromptData`.
        evaluation: Validation of the actor between iterations; None without.
        iterations: Of the whole run, for its forecast time and cost; None where that is open. `execute` takes it from its
            options.
        checkpoints: Checkpoints, for forecasts; None counts none.
        teacher: Log-probabilities and engine of a teacher; None for the sampled tokens' by a forward pass.
        framework: Name of the framework sheet whose steps are forecast and searched. `rlplan execute` runs those of
            `rlplan`.
        old_log_prob: Source of the generating policy's log-probabilities: the generation `engine`, or a forward pass of
            the `trainer`; None takes the framework's way.
        weight_sync: How trained weights reach generation; None takes the framework's way.
        adapters: By role, the adapters that are trained instead of the model.
        trainers: By role, options of its trainer; roles without take their engine's defaults.
        precision: Number format of the weights; None takes the device's usual one. With a format narrower than bf16, only
            the products of linear layers use it, and states are kept as with bf16.
        rollout_precision: Number format of the weights that generate; None takes that of the states of training.
        kv_cache: Number format of the engine's KV cache; None takes the engine's default, or the format of its
            activations.
        kv_offload: KV-cache blocks in host memory; None without.
        prefill: Replicas of the engine that read prompts alone; None where all do both.
        speculation: Speculative decoding; None without.
        quantised_at: Where weights for generation are quantised: at the `sender`, so that fewer bytes move, or at the
            `receiver`, by the engine that loads them.
        constraint: For algorithms that keep a cost under a limit; None takes the usual.
        pretrain: Texts mixed into the actor's updates, for algorithms that do that.
        dynamic_sampling: For algorithms that sample groups again; None takes the usual.
        overlong: A penalty for responses near the longest; None for none.
        failures: How often nodes fail; None forecasts iterations without failures.
        cluster: Available nodes; a plan may leave some unused.
        devices: Sheets of devices that are not in the catalog, by name; a resolved job holds those of the files that its
            cluster names.
        objective: Quantity that a search minimises: seconds, money or energy per token; or the time to a score, which
            forecasts then give too, under an assumption.
        specs: Limits that plans of a search must keep.
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
    prefill: PrefillApart | None = None
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
        """Return a Hugging Face folder or id with a role's weights, or `random`; None where the job does not say.

        A reference without an entry takes the actor's weights.
        """
        if self.weights is None or isinstance(self.weights, str):
            return self.weights
        found: str | None = self.weights.get(role)  # type: ignore[call-overload]
        return self.weights_of("actor") if found is None and role == "reference" else found

    def adapter(self, role: str) -> Adapter | None:
        """Return the adapters that are trained instead of a role's model; None where the model itself is trained."""
        return self.adapters.get(role) if self.adapters else None  # type: ignore[call-overload]

    def trainer(self, role: str) -> TrainerOptions:
        """Return the options of a role's trainer."""
        found = self.trainers.get(role) if self.trainers else None  # type: ignore[call-overload]
        return found or USUAL_TRAINER

    @property
    def judge(self) -> JudgeModel | None:
        """Return how the reward model generates; None if it does not, or there is no reward model."""
        return None if self.rewards is None else self.rewards.judge

    @property
    def top_tokens(self) -> int:
        """Return the number of likeliest tokens whose log-probabilities a teacher gives.

        0 where it gives only the sampled token's, and where whole distributions are compared.
        """
        top = None if self.teacher is None else self.teacher.top_tokens
        return top if isinstance(top, int) else 0

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
        served = self.judge if role == "reward" else self.teacher
        return (served.engine if served is not None else None) or self.engines.generate

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
