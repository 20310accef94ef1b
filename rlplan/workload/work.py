"""The work of one iteration: prompts, responses and what answers them, how often it is learnt from."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from rlplan.files.limits import AtLeastOne
from rlplan.files.tags import NotBool
from rlplan.workload.environment import Environment
from rlplan.workload.lengths import Lengths, longest


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Describe the work of one iteration.

    Attributes:
        prompts: Prompts in a global batch.
        samples_per_prompt: Responses generated for each prompt.
        prompt_tokens: Lengths of the prompts.
        response_tokens: Lengths of the responses.
        max_total_tokens: Most tokens of a prompt, its response and what environments add together, which the
            engine cuts off at; None where each has a limit of its own.
        over_provisioning: Prompts begun for each that is learnt from; those that are done last are dropped.
        over_sampling: Responses begun for each of a prompt's that is learnt from; the last ones are dropped.
        updates: Optimizer steps in one pass over the global batch.
        epochs: Passes over the global batch.
        environments: What answers the model between its turns; none where a response is one turn.
    """

    prompts: AtLeastOne
    samples_per_prompt: AtLeastOne = 1
    prompt_tokens: Lengths
    response_tokens: Lengths
    max_total_tokens: AtLeastOne | None = None
    over_provisioning: Annotated[float, Ge(1), NotBool()] = 1.0
    over_sampling: Annotated[float, Ge(1), NotBool()] = 1.0
    updates: AtLeastOne = 1
    epochs: AtLeastOne = 1
    environments: tuple[Environment, ...] = ()

    @property
    def begun_beyond(self) -> dict[str, float]:
        """Return, by the field that says so, how many are begun for each that is learnt from, where more are."""
        ratios = {"over_provisioning": self.over_provisioning, "over_sampling": self.over_sampling}
        return {name: ratio for name, ratio in ratios.items() if ratio > 1}

    @property
    def drops_responses(self) -> bool:
        """Tell whether more responses are begun than are learnt from."""
        return bool(self.begun_beyond)

    @property
    def sequences(self) -> int:
        """Return the responses of one iteration."""
        return self.prompts * self.samples_per_prompt

    @property
    def longest_sequence_tokens(self) -> int:
        """Return the longest prompt, response and observations together, or what limits them."""
        both = longest(self.prompt_tokens) + longest(self.response_tokens)
        both += max((each.longest_observations_tokens for each in self.environments), default=0)
        return min(both, self.max_total_tokens or both)

    @property
    def mean_observations_tokens(self) -> float:
        """Return the tokens that environments are expected to add to a sequence."""
        return sum(each.share * each.mean_observations_tokens for each in self.environments)
