"""Ways to generate, which placements with the same generating set share."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from rlplan.job import NO_SPECS, Role
from rlplan.planner.exact.candidates import AskedRows, CandidateTable
from rlplan.planner.exact.space import Space
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import load_facts

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ppo-7b-16xa100.yaml"


def test_bounds_raised_for_one_placement_are_not_raised_for_another():
    job = load_job(EXAMPLE)
    job = replace(job, cluster=(replace(job.cluster[0], nodes=1),))
    space = Space(job, load_facts(job), {}, "energy", NO_SPECS)
    members: tuple[Role, ...] = ("actor", "critic")
    sites = [(share, space.site(share)) for share in space.set_shares(members)]
    parts = [AskedRows((*place, space.pools.quick(members, place[1]))) for place in sites]
    first = CandidateTable(space, members).candidates(parts, 4)
    bounds, work = first.generate.copy(), first.work.copy()
    first.play(0, space)
    second = CandidateTable(space, members).candidates(parts, 4)
    assert len(second) > 0
    assert first.is_exact[0]
    assert first.generate[0] > bounds[0]
    assert not second.is_exact.any()
    assert np.array_equal(second.generate, bounds)
    assert np.array_equal(second.work, work)
    assert len(CandidateTable(space, members).candidates(parts, 1)) < len(second)
