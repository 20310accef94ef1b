"""Random batches, estimators called as the executor does, and slow ones to compare with."""

import torch

from rlplan.algorithms import load_algorithm
from rlplan.executor.learning.experience import (
    EstimatorSettings,
    compute_advantages,
    effective_settings,
)
from rlplan.job import Hyperparameters, Rewards

PPO, GRPO = load_algorithm("ppo"), load_algorithm("grpo")
SETTINGS = Hyperparameters(kl_coefficient=0.1, discount=0.9, gae_lambda=0.8)


def alone(tensor):
    return tensor


def terms_of(algorithm, settings, samples=1, reduce_sum=alone, rewards=None, multiplier=0.0):
    return EstimatorSettings(
        settings=effective_settings(algorithm, settings),
        samples_per_prompt=samples,
        rewards=rewards or Rewards(),
        multiplier=multiplier,
        reduce_sum=reduce_sum,
    )


def advantages_of(algorithm, batch, *terms, **more):
    """Return the batch with the advantages of an algorithm's estimator."""
    return compute_advantages(algorithm.advantage, batch, terms_of(algorithm, *terms, **more))


def random_batch(seed: int, prompt_tokens: int = 3, response_tokens=(4, 1, 6, 2, 0, 5)):
    """Return responses of several lengths after prompts of one, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    sequences, tokens = len(response_tokens), prompt_tokens + max(response_tokens)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = torch.zeros(sequences, tokens, dtype=torch.int8)
    for row, length in enumerate(response_tokens):
        mask[row, prompt_tokens : prompt_tokens + length] = 1
    return {
        "response_mask": mask,
        "log_probs": normal(sequences, tokens),
        "reference_log_probs": normal(sequences, tokens),
        "values": normal(sequences, tokens),
        "scores": normal(sequences),
        "rule_scores": normal(sequences),
    }


def slow_gae(batch, rewards, settings):
    """Return {(row, position): advantage} by the sum of eq. 16, for each token anew."""
    advantages = {}
    for row, mask in enumerate(batch["response_mask"].tolist()):
        places = [place for place, inside in enumerate(mask) if inside]
        values = [batch["values"][row, place].item() for place in places] + [0.0]
        token_rewards = [
            -settings.kl_coefficient
            * (batch["log_probs"][row, place] - batch["reference_log_probs"][row, place]).item()
            for place in places
        ]
        if places:
            token_rewards[-1] += rewards[row]
        deltas = [
            reward + settings.discount * values[index + 1] - values[index]
            for index, reward in enumerate(token_rewards)
        ]
        decay = settings.discount * settings.gae_lambda
        for index, place in enumerate(places):
            advantages[row, place] = sum(
                decay**step * delta for step, delta in enumerate(deltas[index:])
            )
    return advantages
