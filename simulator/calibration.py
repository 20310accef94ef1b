"""Fit the factors of a site on its own steps: robustly, with a prior around 1, and only factors that the steps identify.

The model is in logarithms. A measured time is the sum of forecast parts, each times its factor, times an error whose
spread is that of forecasts within a site. The prior of a factor's logarithm has mean 0 and the spread between sites
(`profiles/fits/calibration.yaml`). Together this is ridge regression. Residuals beyond a few spreads get less weight
(Huber 1981, Robust Statistics, chapter 7), so that one outlier does not move a site. The prior too gets less weight
for a factor beyond a few spreads, so that it pulls an unusual site to 1 by a limited amount only (limited translation:
Efron and Morris 1972, JASA 67, 130).

A factor pays the price of one more parameter, which must raise the log-likelihood by one to be worth it (Akaike 1974,
IEEE TAC 19, 716): fitted to one odd step, it would make other forecasts worse. What raises it by less stays 1, with the
spread that its rows give, and the notes say so; of what raises it by more, the share that is kept grows from nothing
(non-negative garrote: Breiman 1995, Technometrics 37, 373). So a step that takes a little longer never moves a factor by
much, wherever it stands. With more rows, smaller factors are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, prod, sqrt

import numpy as np

from rlplan.calibration import (
    ENGINE_KINDS,
    LINKS,
    OVERHEAD,
    WORK_KINDS,
    Calibration,
    Factor,
    Link,
    WorkKind,
    engine_factor,
    link_factor,
)
from rlplan.errors import UserError
from rlplan.files.frozen import FrozenDict
from rlplan.profiles.analytic.efficiencies import Spreads, load_spreads
from rlplan.simulator.columns import Floats
from rlplan.simulator.observations import Observation, Part

Names = tuple[str, ...]
LINK_FACTORS = tuple(link_factor(link) for link in LINKS)

# A factor is told apart if no more than this share of it lies along directions that the rows do not show.
LOOSE_FRACTION = 0.05
MOST_ROUNDS, SMALLEST_STEP, LARGEST_STEP = 200, 1e-12, 1.0
# Twice the log-likelihood that a parameter must bring to be worth it (Akaike 1974).
WORTH_A_PARAMETER = 2.0


@dataclass(frozen=True, slots=True)
class FittedFactors:
    """Hold a site's factors, and what its rows did not show, one sentence each."""

    calibration: Calibration
    notes: tuple[str, ...]


def calibrate(
    observations: Sequence[Observation],
    *,
    site: str = "",
    rests_on: str = "datasheet",
    framework: str = "",
    sources: Sequence[str] = (),
    wanted: Sequence[str] = (),
    within: float | None = None,
) -> FittedFactors:
    """Return the factors of a site.

    Kinds of work that the observations cannot tell apart get one common factor. An engine has a factor of
    its own where the site ran several of its kind.

    Args:
        wanted: Factors, by name, that must be told apart from all others.
        within: Relative, one sigma: by which other forecasts with these factors are off; None takes that of frameworks' sites.

    Raises:
        UserError: There is nothing to fit on, or a wanted factor cannot be told apart; the message says
            what to measure.
    """
    if not observations:
        raise UserError("nothing to calibrate on: no row has both a measured time and a forecast")
    spreads = load_spreads()
    if within is not None:
        spreads = replace(spreads, within_site=replace(spreads.within_site, value=within))
    by_kind = _fit([_named(each, ()) for each in observations], spreads)
    several = _kinds_of_several_engines(observations)
    by_engine = (
        _fit([_named(each, several) for each in observations], spreads) if several else by_kind
    )
    stages = {kind: by_kind[kind] for kind in WORK_KINDS if kind in by_kind}
    engines = {
        part.engine: by_engine[engine_factor(part.engine)]
        for each in observations
        for part in each.parts
        if part.kind in several and part.engine
    }
    found = Calibration(
        site=site,
        rests_on=rests_on,
        framework=framework,
        stages=FrozenDict(stages),
        engines=FrozenDict(engines),
        links=FrozenDict(
            {link: by_kind[link_factor(link)] for link in LINKS if link_factor(link) in by_kind}
        ),
        overhead=by_kind.get(OVERHEAD),
        sources=tuple(sources),
    )
    _check_wanted(found, wanted)
    hidden = {part.link for each in observations for part in each.parts if part.link}
    return FittedFactors(
        found, _notes(found, [link for link in LINKS if link in hidden - set(found.links)])
    )


def _kinds_of_several_engines(observations: Sequence[Observation]) -> tuple[WorkKind, ...]:
    """Return the kinds of work that the site did with more than one engine."""
    parts = [part for each in observations for part in each.parts]
    return tuple(
        kind
        for kind in ENGINE_KINDS
        if len({part.engine for part in parts if part.kind == kind and part.engine}) > 1
    )


@dataclass(frozen=True, slots=True)
class _Sum:
    """Hold a measured time with its forecast seconds by the factors that lengthen them together."""

    measured_seconds: float
    seconds: Mapping[Names, float]
    spread: float


def _named(observation: Observation, by_engine: Sequence[WorkKind]) -> _Sum:
    seconds: dict[Names, float] = {}
    for part in observation.parts:
        names = _names(part, by_engine)
        seconds[names] = seconds.get(names, 0.0) + part.seconds
    return _Sum(observation.measured_seconds, seconds, observation.spread)


def _names(part: Part, by_engine: Sequence[WorkKind]) -> Names:
    if part.host:
        return (OVERHEAD,)
    if part.kind is None:
        return ()
    own = part.kind in by_engine and part.engine
    name = engine_factor(part.engine) if own else part.kind
    return (name,) if part.link is None else (name, link_factor(part.link))


def _fit(sums: Sequence[_Sum], spreads: Spreads) -> dict[str, Factor]:
    """Return the factors by name; those that cannot be told apart have one value, and links none."""
    names = _all_names(sums)
    priors = {name: _prior(name, spreads) for name in names}
    loose = _loose(sums, names, priors)
    hidden = [name for name in loose if name in LINK_FACTORS]
    if hidden:
        sums = [_without(each, hidden) for each in sums]
        names = _all_names(sums)
        loose = _loose(sums, names, priors)
    if not names:
        return {}
    groups = [(name,) for name in names if name not in loose] + ([tuple(loose)] if loose else [])
    common = np.array([_common_prior(sums, group, priors) for group in groups])
    fitted = _factors(sums, groups, common, spreads)
    return {name: fitted[name] for name in names}


def _factors(
    sums: Sequence[_Sum], groups: Sequence[Names], priors: Floats, spreads: Spreads
) -> dict[str, Factor]:
    """Return the factors by name."""
    outlier = spreads.outlier.value
    logs, information = _solved(sums, groups, priors, outlier)
    covariance = np.linalg.inv(information)
    precision = _precision(logs, priors, outlier)
    kept = _kept(logs, information)
    found: dict[str, Factor] = {}
    for place, group in enumerate(groups):
        own, drawn = float(covariance[place, place]), float(precision[place, place])
        for name in group:
            found[name] = Factor(
                value=float(np.exp(kept[place] * logs[place])),
                spread=hypot(sqrt(own), spreads.within_site.value),
                rows=sum(bool(set(group) & set(_all_names([each]))) for each in sums),
                shrinkage=1 - float(kept[place]) * (1 - min(1.0, own * drawn)),
                tied_to=tuple(other for other in group if other != name),
            )
    return found


def _kept(logs: Floats, information: Floats) -> Floats:
    """Return the share of each group's logarithm that is worth its price, from 0 to 1. Shape (groups,).

    Giving up d of the logarithms lowers the log-likelihood, with the prior in it, by d' information d / 2; keeping the
    share c of one costs `WORTH_A_PARAMETER` times c. The shares are those at which both together are least, found one
    after another: a single one is 1 - WORTH_A_PARAMETER / g where twice the log-likelihood that it brings is g.
    """
    given_up = np.zeros(len(logs))
    own = np.diag(information)
    for _ in range(MOST_ROUNDS):
        before = given_up.copy()
        for place, log in enumerate(logs):
            if log:
                others = information[place] @ given_up - own[place] * given_up[place]
                best = (WORTH_A_PARAMETER / log - others) / own[place]
                given_up[place] = np.clip(best, min(0.0, log), max(0.0, log))
        if np.max(np.abs(given_up - before)) < SMALLEST_STEP:
            break
    return 1 - np.divide(given_up, logs, out=np.ones(len(logs)), where=logs != 0)


def _all_names(sums: Sequence[_Sum]) -> list[str]:
    return list(dict.fromkeys(name for each in sums for names in each.seconds for name in names))


def _without(each: _Sum, hidden: Sequence[str]) -> _Sum:
    """Return a sum whose seconds these factors do not lengthen."""
    seconds: dict[Names, float] = {}
    for names, own in each.seconds.items():
        kept = tuple(name for name in names if name not in hidden)
        seconds[kept] = seconds.get(kept, 0.0) + own
    return replace(each, seconds=seconds)


def _prior(name: str, spreads: Spreads) -> float:
    """Return how far a factor lies from 1 at sites, one sigma of its logarithm."""
    if name == OVERHEAD:
        return spreads.overhead_between_sites.value
    if name in LINK_FACTORS:
        return spreads.links_between_sites.value
    if name in WORK_KINDS:
        return spreads.between_sites[name].value
    return max(spreads.between_sites[kind].value for kind in ENGINE_KINDS)


def _common_prior(sums: Sequence[_Sum], group: Names, priors: Mapping[str, float]) -> float:
    """Return how far from 1 the one factor lies that stands for several, one sigma of its logarithm.

    Each is away from 1 by itself, so that they make up for each other in part in the sum that rows show.
    """
    ones = dict.fromkeys(_all_names(sums), 1.0)
    alone = [(name,) for name in group]
    shares = np.sum([_shares(each, ones, alone) for each in sums], axis=0)
    own = np.array([priors[name] for name in group])
    if not shares.any():  # no row has anything of theirs: none weighs more than another
        shares = np.ones(len(group))
    return float(np.linalg.norm(shares * own) / np.sum(shares))


def _loose(sums: Sequence[_Sum], names: Sequence[str], priors: Mapping[str, float]) -> list[str]:
    """Return the factors that cannot be told apart.

    In units of the error of a row and the spread of a factor between sites, a direction is shown where
    the design's singular value is at least 1: there rows say more than was known before them.
    """
    groups = [(name,) for name in names]
    ones = dict.fromkeys(names, 1.0)
    design = np.array([_shares(each, ones, groups) / each.spread for each in sums])
    design = design * np.array([priors[name] for name in names])
    _, values, directions = np.linalg.svd(design, full_matrices=True)
    shown = np.zeros(len(names), dtype=bool)
    shown[: len(values)] = values >= 1
    loose = np.sum(directions[~shown] ** 2, axis=0)
    return [name for name, share in zip(names, loose, strict=True) if share > LOOSE_FRACTION]


def _lengthened(each: _Sum, factors: Mapping[str, float]) -> dict[Names, float]:
    return {names: own * prod(factors[n] for n in names) for names, own in each.seconds.items()}


def _shares(each: _Sum, factors: Mapping[str, float], groups: Sequence[Names]) -> Floats:
    """Return by which share a forecast grows with the logarithm of each group's factor. Shape (groups,)."""
    scaled = _lengthened(each, factors)
    grown = [
        sum(own * len(set(names) & set(group)) for names, own in scaled.items()) for group in groups
    ]
    return np.array(grown) / sum(scaled.values())


def _solved(
    sums: Sequence[_Sum], groups: Sequence[Names], priors: Floats, outlier: float
) -> tuple[Floats, Floats]:
    """Return the logarithms of the groups' factors and what is known of them, by reweighted Gauss-Newton.

    Returns:
        The logarithms, shape (groups,), and the inverse of their covariance, shape (groups, groups).
    """
    logs = np.zeros(len(groups))
    for _ in range(MOST_ROUNDS):
        precision = _precision(logs, priors, outlier)
        curvature, pull = _normal_equations(sums, groups, logs, outlier)
        step = np.linalg.solve(curvature + precision, pull - precision @ logs)
        logs = logs + np.clip(step, -LARGEST_STEP, LARGEST_STEP)
        if np.max(np.abs(step)) < SMALLEST_STEP:
            break
    curvature, _ = _normal_equations(sums, groups, logs, outlier)
    return logs, np.asarray(curvature + _precision(logs, priors, outlier), dtype=np.float64)


def _precision(logs: Floats, priors: Floats, outlier: float) -> Floats:
    """Return the precision of the prior at these logarithms. Shape (groups, groups)."""
    weight = outlier * priors / np.maximum(np.abs(logs), outlier * priors)
    return np.diag(weight / priors**2)


def _normal_equations(
    sums: Sequence[_Sum], groups: Sequence[Names], logs: Floats, outlier: float
) -> tuple[Floats, Floats]:
    """Return the curvature of the rows' misfit at these logarithms and its pull on each of them."""
    factors = {
        name: float(np.exp(log)) for group, log in zip(groups, logs, strict=True) for name in group
    }
    spread = np.array([each.spread for each in sums])
    seconds = [sum(_lengthened(each, factors).values()) for each in sums]
    residual = np.log([each.measured_seconds / s for each, s in zip(sums, seconds, strict=True)])
    residual = residual / spread
    slope = np.array([_shares(each, factors, groups) for each in sums]) / spread[:, None]
    weight = np.minimum(1.0, outlier / np.maximum(np.abs(residual), outlier))
    return slope.T @ (weight[:, None] * slope), slope.T @ (weight * residual)


def _check_wanted(found: Calibration, wanted: Sequence[str]) -> None:
    factors = dict(found.named())
    for name in wanted:
        if name not in factors:
            known = ", ".join(factors)
            raise UserError(
                f"{name} was not measured in these rows, which show: {known}; give steps with its seconds"
            )
        tied = factors[name].tied_to
        if tied:
            raise UserError(
                f"{name} cannot be told apart from {', '.join(tied)} in these rows: give steps with the "
                f"seconds of each stage, or more steps whose stages have other shares"
            )


def _notes(found: Calibration, hidden_links: Sequence[Link]) -> tuple[str, ...]:
    factors = dict(found.named())
    notes = []
    tied = [name for name, factor in factors.items() if factor.tied_to]
    if tied:
        notes.append(
            f"not told apart, fitted as one factor: {', '.join(tied)}; seconds of each stage would tell "
            f"them apart"
        )
    idle = [name for name, factor in factors.items() if factor.shrinkage == 1.0]
    if idle:
        notes.append(
            f"left at 1, not worth a factor: {', '.join(idle)}; these times differ from their sheets by no "
            f"more than steps of one site do"
        )
    absent = [kind for kind in WORK_KINDS if kind not in factors]
    if absent:
        notes.append(f"not measured, left as their sheets say: {', '.join(absent)}")
    notes += [
        f"{link_factor(link)}: not told apart from the work that it is part of; steps of unlike numbers of "
        f"nodes, or unlike layouts, would tell it"
        for link in hidden_links
    ]
    return tuple(notes)
