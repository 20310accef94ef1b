"""What a configuration learns by, in words that frameworks have in common: the algorithm, and what losses need."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import USUAL_ROUNDS, rounds_in_batches, rounds_of
from rlplan.errors import UserError
from rlplan.files.decoding import decode
from rlplan.job import DynamicSampling, Hyperparameters, KlPlace
from rlplan.planner.configs.reading.settings import RoleSettings, Settings
from rlplan.planner.configs.reading.sheet import AlgorithmWords, Scalar

# Samples of a prompt are compared by none of its estimators, and the same models are passed over.
UNGROUPED: Final = "reinforce-plus-plus"
# What is passed over with a reference, whatever its losses.
COMPARED: Final = "grpo"
REFERENCE: Final = "reference"
# A limit of batches that no step reaches stands for none.
NO_LIMIT: Final = 1_000_000
# Where a framework has AdamW's two betas by a key each.
MOMENTS: Final = ("beta1", "beta2")
# A reference that is passed over with a weight of 0 takes its time all the same.
LEAST_KL_WEIGHT: Final = 1e-9


def algorithm_of(settings: Settings, *, compares: bool) -> str:
    """Return the algorithm that a configuration's words amount to, by its passes where its losses have no name.

    Args:
        compares: Whether the actor is compared with a reference.
    """
    name = _named(settings)
    if compares and REFERENCE not in load_algorithm(name).required_roles:
        name = COMPARED
    alone = load_algorithm(name).groups and settings.whole("samples") == 1
    return UNGROUPED if alone else name


def algorithm_notes(
    settings: Settings, algorithm: str, *, sampled: bool = False
) -> tuple[str, ...]:
    """Return notes for a configuration whose algorithm is forecast as another one with the same passes.

    Args:
        sampled: Whether groups that are sampled again are counted whatever the algorithm does by itself.
    """
    named, notes = _named(settings), list[str]()
    if named != algorithm:
        notes.append(
            f"{named} as it is configured passes over what {algorithm} does, and is taken for it"
        )
    if settings.on("filters") and not (sampled or load_algorithm(algorithm).resamples):
        notes.append(
            f"groups of equal rewards that are sampled again are not counted with {algorithm}"
        )
    return tuple(notes)


def gradient_norm(actor: RoleSettings) -> float:
    """Return the norm above which gradients are scaled down; the usual one where none is given."""
    norm = actor.value("max_gradient_norm")
    given = isinstance(norm, int | float) and not isinstance(norm, bool) and norm > 0
    return norm if given else Hyperparameters().max_gradient_norm  # type: ignore[return-value]


def sampling_of(settings: Settings, algorithm: str) -> DynamicSampling | None:
    """Return how groups of equal rewards are sampled again; None where they are not, or are not counted."""
    if not settings.on("filters") or not load_algorithm(algorithm).resamples:
        return None
    rounds = settings.whole("filter_rounds")
    usual = DynamicSampling(expected_rounds=USUAL_ROUNDS)
    return replace(usual, max_rounds=rounds) if rounds > 0 else usual


def sampled_in_batches(prompts: int, batch: int, most: int | None) -> DynamicSampling:
    """Return how groups are sampled again where whole batches are generated until enough differ in reward.

    A job counts rounds in batches of the prompts that a step learns from.

    Args:
        prompts: That a step learns from.
        batch: Prompts of a batch that is generated.
        most: Batches of a step; None sets no limit.
    """
    return DynamicSampling(
        max_rounds=NO_LIMIT if most is None else math.ceil(most * batch / prompts),
        expected_rounds=rounds_in_batches(prompts, batch, most),
        batches_at_once=batch / prompts,
    )


def sampling_guess(sampling: DynamicSampling, prompts: int, batch: int | None = None) -> str:
    """Return what is assumed of groups that are sampled again, for people.

    Args:
        batch: Prompts of a batch, where whole ones are generated.
    """
    generated = round(rounds_of(sampling) * prompts)
    how = f"{generated:,} prompts"
    if batch is not None:
        batches = max(1, round(generated / batch))
        how = f"{batches} batch{'es' if batches != 1 else ''} of {batch:,} prompts"
    kept = 1 / USUAL_ROUNDS
    return (
        f"{how} generated for the {prompts:,} that a step learns from: {kept:.0%} of groups are taken to differ in "
        "reward; say dynamic_sampling.expected_rounds of the job"
    )


def _named(settings: Settings) -> str:
    """Return the algorithm that the words name."""
    for name, meant in settings.sheet.algorithms.items():
        if all(_says(settings, setting, value) for setting, value in meant.words.items()):
            return name
    return settings.word("estimator")


def _says(settings: Settings, setting: str, value: Scalar) -> bool:
    if isinstance(value, bool):
        return settings.on(setting) == value
    return settings.value(setting) == value


def words_of(algorithms: Mapping[str, AlgorithmWords], algorithm: str) -> Mapping[str, Scalar]:
    """Return the settings that name an algorithm, and their values."""
    meant = algorithms.get(algorithm)
    return {"estimator": algorithm} if meant is None else meant.words


def given_losses(settings: Settings, algorithm: str) -> dict[str, Any]:
    """Return what a configuration says of losses and optimizers, as `rlplan.job.Hyperparameters` has it.

    None of it takes time or memory: what a job cannot hold, such as a word that is not known, is left out.
    """
    found: dict[str, Any] = {}
    for name in settings.sheet.losses:
        with suppress(UserError):
            value = settings.loss(name)
            if value is not None:
                found[name] = getattr(decode(Hyperparameters, {name: value}, settings.file), name)
    if MOMENTS[0] in settings.sheet.settings and all(map(settings.is_given, MOMENTS)):
        with suppress(UserError):
            pair = [settings.number(each) for each in MOMENTS]
            found["betas"] = decode(Hyperparameters, {"betas": pair}, settings.file).betas
    meant = settings.sheet.algorithms.get(algorithm)
    return found if meant is None else found | dict(meant.losses)


def kl_place(kind: KlPlace, weight: float) -> dict[str, Any]:
    """Return where the penalty for leaving the reference goes, so that its pass is counted."""
    if kind == "none":
        return {"kl_in": "none", "kl_coefficient": 0.0}
    return {"kl_in": kind, "kl_coefficient": max(weight, LEAST_KL_WEIGHT)}
