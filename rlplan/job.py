"""A job: what to train, on what work, on which machines. The file `job.yaml`."""

from dataclasses import dataclass
from typing import Literal

from rlplan.frozen import FrozenDict
from rlplan.lengths import Lengths, longest
from rlplan.limits import AtLeastOne, Fraction, NonNegative, NonNegativeInt, Number, Positive
from rlplan.model import ModelArchitecture
from rlplan.precision import TrainingPrecision

JOB_VERSION = 1

Role = Literal["actor", "critic", "reference", "reward", "cost", "rule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Describe the work of one iteration.

    Attributes:
        prompts: Prompts in a global batch.
        samples_per_prompt: Responses generated for each prompt.
        prompt_tokens: Lengths of the prompts.
        response_tokens: Lengths of the responses.
        updates: Optimizer steps in one pass over the global batch.
        epochs: Passes over the global batch.
    """

    prompts: AtLeastOne
    samples_per_prompt: AtLeastOne = 1
    prompt_tokens: Lengths
    response_tokens: Lengths
    updates: AtLeastOne = 1
    epochs: AtLeastOne = 1

    @property
    def sequences(self) -> int:
        """Return the responses of one iteration."""
        return self.prompts * self.samples_per_prompt

    @property
    def longest_sequence_tokens(self) -> int:
        """Return the longest prompt plus the longest response."""
        return longest(self.prompt_tokens) + longest(self.response_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Describe equal nodes of one cluster.

    Attributes:
        gpu: Name of a device sheet.
        intra_node: Link inside a node, for people; its rate is the device sheet's.
        inter_node_gbps: Network of one node, all its cards together, one direction.
        cpu_cores: Host cores of one node, for reward functions and environments.
    """

    gpu: str
    gpus_per_node: AtLeastOne
    nodes: AtLeastOne = 1
    intra_node: str | None = None
    inter_node_gbps: Positive = 200.0
    cpu_cores: AtLeastOne | None = None

    @property
    def gpus(self) -> int:
        """Return all GPUs of the group."""
        return self.gpus_per_node * self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """Say where rewards come from beside (or instead of) a reward model.

    Attributes:
        function: A built-in rule's name, or `path/to/file.py:name`, called as
            `name(prompt: str, response: str, row: dict) -> float`.
        function_weight: Factor of the rule's reward.
        model_weight: Factor of the reward model's score.
        function_seconds_per_sample: What one call takes, when it was not profiled.
    """

    function: str | None = None
    function_weight: Number = 1.0
    model_weight: Number = 1.0
    function_seconds_per_sample: NonNegative | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameters:
    """Hold what the losses and optimizers need.

    Attributes:
        kl_coefficient: Weight of the KL penalty towards the reference model.
        clip_ratio: PPO's clip of the probability ratio.
        gae_lambda: Lambda of generalised advantage estimation.
    """

    learning_rate: Positive = 1e-6
    critic_learning_rate: Positive = 1e-5
    kl_coefficient: NonNegative = 0.01
    clip_ratio: Fraction = 0.2
    value_clip: Positive = 0.2
    discount: Fraction = 1.0
    gae_lambda: Fraction = 0.95
    entropy_coefficient: NonNegative = 0.0
    max_gradient_norm: Positive = 1.0
    temperature: Positive = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Name the engine sheets that train and generate; None takes the device's usual one."""

    train: str | None = None
    generate: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Describe an RL training job before anything is decided about GPUs.

    Attributes:
        models: By role, a preset's name, the path of a Hugging Face config (file or folder,
            relative to the job's file), or an architecture written out. A resolved job has only
            architectures, and no trace files.
        prompts_file: JSONL with a `prompt` per row, for `execute`.
        precision: Number format of the weights; None takes the device's usual one.
    """

    version: Literal[1] = 1
    name: str = "job"
    algorithm: str
    models: FrozenDict[Role, str | ModelArchitecture]
    workload: Workload
    cluster: tuple[NodeGroup, ...]
    engines: Engines = Engines()
    precision: TrainingPrecision | None = None
    rewards: Rewards | None = None
    hyperparameters: Hyperparameters = Hyperparameters()
    prompts_file: str | None = None
    tokenizer: str = "bytes"
    seed: NonNegativeInt = 0

    def architecture(self, role: str) -> ModelArchitecture:
        """Return the architecture of a role of a resolved job."""
        model = self.models[role]  # type: ignore[index]
        assert isinstance(model, ModelArchitecture), f"job was not resolved: {role} is {model!r}"
        return model

    @property
    def gpus(self) -> int:
        """Return all GPUs of the cluster."""
        return sum(group.gpus for group in self.cluster)
