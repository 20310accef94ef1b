"""What to rent: the catalogue as its contract has it, laws of fronts and limits, and searches as `rlplan search` does them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError, InfeasibleError, UnknownNameError, UserError
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_yaml
from rlplan.job import NodeGroup, Specs
from rlplan.planner.configs.proposing.searching import plans_of
from rlplan.planner.renting import searching
from rlplan.planner.renting.offered import catalogue, checked, offered, read_prices
from rlplan.planner.renting.searching import (
    RentRequest,
    chosen_of,
    front_of,
    job_on,
    read_rented_job,
    rent,
    within,
)
from rlplan.profiles.facts import load_facts
from rlplan.profiles.sheets import load_device, sheet_names
from rlplan.rentals import DATE, RentalInstance, RentalSheet
from rlplan.results.renting import RentalLimits, RentalOffer
from rlplan.results.run import RunForecast
from rlplan.simulator.simulate import simulate
from rlplan.simulator.whole_run import run_forecast
from rlplan.workload import mean_length
from tests.simulator.plans import priced_plan

H100 = "h100-80gb-sxm"
STEPS = 10
PLAN = priced_plan()


def sheet_of(*instances, provider="ours"):
    return RentalSheet(provider=provider, instances=instances)


def instance_of(name="node", **changes):
    fields: dict[str, Any] = {
        "gpu": H100,
        "gpus": 1,
        "usd_per_hour": 8.0,
        "inter_node_gbps": 400.0,
        "vcpus": 64,
        "host_memory_bytes": 512 * 2**30,
    }
    return RentalInstance(name=name, **(fields | changes))


def request_of(tmp_path, **changes):
    work = {
        "prompts": 2,
        "samples_per_prompt": 2,
        "prompt_tokens": 16,
        "response_tokens": 64,
    }
    job = {
        "algorithm": "grpo",
        "models": {"actor": "tiny", "reference": "tiny"},
        "workload": work,
        "rewards": {"function": "digits"},
    }
    write_yaml(tmp_path / "job.yaml", job)
    return RentRequest(
        job=read_rented_job(tmp_path / "job.yaml"),
        folder=tmp_path,
        file="job.yaml",
        steps=STEPS,
        facts_of=load_facts,
        **changes,
    )


# The catalogue.


@pytest.mark.parametrize("name", sheet_names("rentals"))
def test_all_of_the_catalogue_is_known_and_has_a_source(name):
    (sheet,) = catalogue((name,))
    assert sheet.provider == name
    assert sheet.title
    assert sheet.region
    assert checked(sheet, name) == sheet, "GPUs are named as their sheets are"
    for each in sheet.instances:
        assert each.price_date is None or DATE.fullmatch(each.price_date)
        given = {"usd_per_hour"} | {
            field
            for field in ("inter_node_gbps", "vcpus", "host_memory_bytes")
            if getattr(each, field) is not None
        }
        assert given == set(each.sources), f"{each.name}: a source for each figure"
        assert each.price_date or "no date" in each.sources["usd_per_hour"]


@pytest.mark.parametrize("name", sheet_names("rentals"))
def test_instances_of_the_catalogue_are_such_as_could_be(name):
    """Slips of a digit or a unit: prices, networks and memory a GPU stand within what is usual of it."""
    for each in catalogue((name,))[0].instances:
        device = load_device(each.gpu)
        assert each.gpus in {1, 2, 4, 8, 16}
        assert 0.25 < each.usd_per_hour / each.gpus / device.usd_per_hour < 4, each.name
        if each.inter_node_gbps is not None:
            assert 25 <= each.inter_node_gbps / each.gpus <= 800, each.name
        if each.host_memory_bytes is not None:
            assert each.host_memory_bytes / each.gpus >= 0.8 * device.memory_bytes, each.name
        if each.cores is not None:
            assert 5 <= each.cores / each.gpus <= 32, each.name


# What is offered.


def test_numbers_are_powers_of_two_up_to_the_most_gpus_and_one_where_no_network_is_known():
    linked, alone = instance_of(), instance_of("alone", inter_node_gbps=None)
    found = offered([sheet_of(linked, alone)], most_gpus=5)
    assert [(each.instance.name, each.count) for each in found] == [
        ("node", 1),
        ("alone", 1),
        ("node", 2),
        ("node", 4),
    ]
    own = instance_of(counts=(3, 1, 50))
    assert [each.count for each in offered([sheet_of(own)], most_gpus=5)] == [1, 3]


def test_gpus_may_be_named_and_unknown_ones_are_refused():
    sheet = sheet_of(instance_of(), instance_of("other", gpu="h200"))
    assert {each.instance.name for each in offered([sheet], gpus=("h100",))} == {"node"}
    with pytest.raises(UnknownNameError, match="h1000"):
        offered([sheet], gpus=("h1000",))
    with pytest.raises(UserError, match="what is offered: h100-80gb-sxm, h200"):
        offered([sheet], gpus=("a40",))
    with pytest.raises(UnknownNameError, match="'awss'"):
        catalogue(("awss",))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu": "h1000"}, r"instances\[0\].gpu: is no GPU that has a sheet"),
        ({"network": "efb"}, r"instances\[0\].network: is no kind with a sheet"),
        ({"price_date": "yesterday"}, r"instances\[0\].price_date: is no date"),
        ({"usd_per_hour": 0}, "usd_per_hour"),
        ({"usd_an_hour": 3}, "usd_an_hour"),
    ],
)
def test_own_prices_are_checked_by_field(tmp_path, changes, words):
    one = {"name": "node", "gpu": "h100", "gpus": 8, "usd_per_hour": 20.0}
    write_yaml(tmp_path / "prices.yaml", {"provider": "ours", "instances": [one | changes]})
    with pytest.raises(FileError, match=words):
        read_prices(tmp_path / "prices.yaml")


def test_own_prices_may_name_gpus_by_their_other_names_and_no_instance_twice(tmp_path):
    one = {"name": "node", "gpu": "H100", "gpus": 8, "usd_per_hour": 20.0}
    file = tmp_path / "prices.yaml"
    write_yaml(file, {"provider": "ours", "instances": [one]})
    assert [each.gpu for each in read_prices(file).instances] == [H100]
    write_yaml(file, {"provider": "ours", "instances": [one, one]})
    with pytest.raises(FileError, match="is there twice"):
        read_prices(file)
    write_yaml(file, {"provider": "ours", "instances": []})
    with pytest.raises(FileError, match="rents nothing"):
        read_prices(file)


# Laws of fronts and limits.


def offer_of(seconds, usd, spread, number=0):
    run = RunForecast(
        steps=STEPS,
        points=(),
        seconds=seconds,
        interval_seconds=(seconds / spread, seconds * spread),
        parts=FrozenDict(steps=seconds),
        usd_per_hour=usd / seconds * 3600,
        usd=usd,
        interval_usd=(usd / spread, usd * spread),
    )
    return RentalOffer(
        provider="ours",
        name=f"n{number}",
        gpu=H100,
        instances=1,
        gpus=8,
        price_date=None,
        region="",
        plan=PLAN,
        run=run,
        gap=0.0,
    )


FIGURES = st.integers(1, 30).map(float)
OFFERS = st.lists(
    st.builds(offer_of, FIGURES, FIGURES, st.sampled_from([1.0, 1.2, 1.5, 2.0])),
    min_size=1,
    max_size=8,
)
LIMITS = st.none() | st.integers(1, 60).map(float)


@given(OFFERS)
def test_a_front_has_no_point_that_another_beats_and_beats_all_others(offers):
    front = front_of(offers)
    for one in front:
        assert not any(
            other.run.seconds <= one.run.seconds and other.run.usd <= one.run.usd
            for other in front
            if other is not one
        )
    for offer in offers:
        assert any(
            each.run.seconds <= offer.run.seconds and each.run.usd <= offer.run.usd
            for each in front
        )
    assert [each.run.seconds for each in front] == sorted(each.run.seconds for each in front)
    assert front_of(front) == front


def answer_within(offers, budget, deadline):
    limits = RentalLimits(budget_usd=budget, deadline_seconds=deadline)
    try:
        front = front_of(within(offers, limits))
    except InfeasibleError:
        return None
    return front[chosen_of(front, limits)]


@given(OFFERS, st.integers(1, 60), st.integers(0, 30))
def test_a_larger_budget_is_never_slower(offers, budget, more):
    tight, wide = (answer_within(offers, each, None) for each in (budget, budget + more))
    if tight is not None:
        assert wide.run.seconds <= tight.run.seconds
        assert tight.run.interval_usd[1] <= budget


@given(OFFERS, st.integers(1, 60), st.integers(0, 30), LIMITS)
def test_a_later_deadline_is_never_dearer_whatever_the_budget(offers, deadline, more, budget):
    tight, wide = (answer_within(offers, budget, each) for each in (deadline, deadline + more))
    if tight is not None:
        assert wide.run.usd <= tight.run.usd
        assert tight.run.interval_seconds[1] <= deadline


@given(OFFERS, LIMITS, LIMITS)
def test_limits_leave_no_better_front_than_there_is_without(offers, budget, deadline):
    whole = front_of(offers)
    try:
        front = front_of(within(offers, RentalLimits(budget_usd=budget, deadline_seconds=deadline)))
    except InfeasibleError as error:
        assert "at p90; the " in str(error), "it says what comes nearest"  # noqa: PT017
        return
    for each in front:
        assert any(o.run.seconds <= each.run.seconds and o.run.usd <= each.run.usd for o in whole)


def test_what_keeps_no_limit_is_named_by_what_comes_nearest():
    offers = [offer_of(7200.0, 10.0, 1.5, 1), offer_of(3600.0, 30.0, 1.5, 2)]
    with pytest.raises(
        InfeasibleError, match=r"keeps 12.00 USD at p90; the cheapest takes up to 15.00 USD"
    ):
        within(offers, RentalLimits(budget_usd=12.0))
    with pytest.raises(
        InfeasibleError, match=r"the cheapest by then takes up to 45.00 USD .*n2 of ours"
    ):
        within(offers, RentalLimits(budget_usd=20.0, deadline_seconds=6000.0))
    with pytest.raises(InfeasibleError, match=r"\(1 x n1 of ours\); assumed: all are long$"):
        within(offers, RentalLimits(budget_usd=12.0), ["assumed: all are long"])


# Searches.


def test_a_catalogue_of_one_instance_is_a_search_of_that_cluster(tmp_path):
    request = request_of(tmp_path)
    (one,) = offered([sheet_of(instance_of(counts=(1,)))])
    answer = rent(request, [one])
    job = job_on(request, one)
    best = plans_of(job, load_facts).plans[0]
    (offer,) = answer.front
    assert offer.plan == best.plan
    assert offer.run.seconds == pytest.approx(STEPS * best.forecast.iteration_seconds)
    assert offer.run.usd == pytest.approx(offer.run.seconds / 3600 * 8.0)
    assert (answer.chosen, answer.searched) == (None, 1)


def test_equal_nodes_are_searched_once_and_worse_ones_that_cost_more_not_at_all(tmp_path):
    instances = [
        instance_of("dear", usd_per_hour=9.0, counts=(1,)),
        instance_of("cheap", usd_per_hour=7.0, counts=(1,)),
        instance_of("less", usd_per_hour=8.0, vcpus=32, counts=(1,)),
    ]
    answer = rent(request_of(tmp_path), offered([sheet_of(*instances)]))
    assert (answer.searched, answer.reused, answer.pruned) == (1, 1, 1)
    (offer,) = answer.front
    assert offer.name == "cheap"
    assert [each.name for each in answer.beaten] == ["dear"]
    assert [(each.name, each.reason[:29]) for each in answer.left_out] == [
        ("less", "cannot beat what was found: a")
    ]
    dear = answer.beaten[0]
    assert dear.run.usd / offer.run.usd == pytest.approx(9 / 7)
    assert dear.plan.job.cluster[0].usd_per_gpu_hour == 9.0


@pytest.mark.full
def test_pruning_loses_nothing_of_the_front(tmp_path):
    instances = [
        instance_of("a", usd_per_hour=9.0, counts=(1,)),
        instance_of("b", usd_per_hour=6.0, vcpus=32, counts=(1,)),
        instance_of("c", usd_per_hour=8.0, vcpus=16, counts=(1,)),
    ]
    request = request_of(tmp_path)
    together = rent(request, offered([sheet_of(*instances)]))
    apart = [rent(request, offered([sheet_of(each)])).front[0] for each in instances]
    assert [each.run for each in front_of(apart)] == [each.run for each in together.front]


def test_what_a_search_that_was_ended_early_left_open_bounds_nothing(tmp_path, monkeypatch):
    """The plan on the better nodes may be far from the best: lesser and cheaper ones are searched."""

    def ended(*given, **options):
        return replace(plans_of(*given, **options), gap=0.5)

    monkeypatch.setattr(searching, "plans_of", ended)
    instances = [instance_of("more", counts=(1,)), instance_of("less", vcpus=32, counts=(1,))]
    answer = rent(request_of(tmp_path, seconds=60.0), offered([sheet_of(*instances)]))
    assert (answer.searched, answer.pruned) == (2, 0)


def test_each_price_is_searched_where_the_job_itself_limits_money(tmp_path):
    request = request_of(tmp_path)
    limited = replace(request.job, specs=Specs(usd_per_hour=7.5))
    instances = [
        instance_of("dear", usd_per_hour=9.0, vcpus=65, counts=(1,)),
        instance_of("cheap", usd_per_hour=7.0, counts=(1,)),
    ]
    answer = rent(replace(request, job=limited), offered([sheet_of(*instances)]))
    assert [each.name for each in answer.front] == ["cheap"]
    assert [each.name for each in answer.left_out] == ["dear"]


def test_nodes_of_fewer_cores_are_searched_where_the_job_limits_energy(tmp_path):
    """Cores that wait take power: a job can fit within a limit on few of them and not on many."""
    request = request_of(tmp_path)
    instances = [
        instance_of("many", vcpus=256, counts=(1,)),
        instance_of("few", vcpus=4, counts=(1,)),
    ]
    (plan,) = (each.plan for each in rent(request, offered([sheet_of(instances[1])])).front)
    joules = simulate(plan, load_facts(plan.job)).energy_joules
    limited = replace(request.job, specs=Specs(energy_joules=joules))
    answer = rent(replace(request, job=limited), offered([sheet_of(*instances)]))
    assert [each.name for each in answer.front] == ["few"]
    assert [each.name for each in answer.left_out] == ["many"]


def test_networks_of_two_kinds_bound_nothing_of_each_other(tmp_path):
    assert (
        job_on(request_of(tmp_path), offered([sheet_of(instance_of(network="efa"))])[0])
        .cluster[0]
        .network
        == "efa"
    )
    one = NodeGroup(gpu=H100, gpus_per_node=1, nodes=2, inter_node_gbps=400.0)
    assert searching._as_good(one, one)
    assert not searching._as_good(one, replace(one, network="efa"))


def test_a_limit_changes_nothing_in_what_is_searched(tmp_path):
    sheets = [sheet_of(instance_of(counts=(1,)), instance_of("b", usd_per_hour=5.0, counts=(1,)))]
    free = rent(request_of(tmp_path), offered(sheets))
    limits = RentalLimits(budget_usd=free.front[0].run.interval_usd[1])
    bound = rent(request_of(tmp_path, limits=limits), offered(sheets))
    assert (bound.searched, bound.reused, bound.pruned) == (free.searched, free.reused, free.pruned)
    assert bound.front == free.front
    assert bound.chosen == 0
    tight = replace(limits, budget_usd=1e-9)
    with pytest.raises(InfeasibleError, match=r"keeps <0\.0001 USD at p90"):
        rent(request_of(tmp_path, limits=tight), offered(sheets))


def test_a_job_that_fits_on_nothing_says_why(tmp_path):
    request = request_of(tmp_path)
    models = FrozenDict(actor="qwen2.5-32b", reference="qwen2.5-32b")
    request = replace(request, job=replace(request.job, models=models))
    with pytest.raises(
        InfeasibleError, match=r"fits on nothing that was looked at; on 1 x node of ours"
    ):
        rent(request, offered([sheet_of(instance_of(counts=(1,)))]))


def test_where_the_best_plan_of_a_step_does_not_fit_at_the_end_of_a_run_another_is_found(
    tmp_path, monkeypatch
):
    """A step's best plan is such as would not fit later; the search of the longest step finds one that does."""
    asked = []

    def searched(job, facts_of, **options):
        asked.append(mean_length(job.workload.response_tokens))
        return plans_of(job, facts_of, **options)

    def forecast(plan, *others, **options):
        run = run_forecast(plan, *others, **options)
        return replace(run, infeasible_reasons=("at step 10: no",) if len(asked) == 1 else ())

    monkeypatch.setattr(searching, "plans_of", searched)
    monkeypatch.setattr(searching, "run_forecast", forecast)
    request = request_of(tmp_path, curve=((1, 64.0), (STEPS, 128.0)))
    (offer,) = rent(request, offered([sheet_of(instance_of(counts=(1,)))])).front
    assert asked == [64, 128]
    assert offer.plan.job.workload.response_tokens == 64
    assert offer.run.points[-1].response_tokens == 128


def test_a_plan_is_no_job_to_rent_for(tmp_path):
    write_yaml(tmp_path / "plan.yaml", {"job": "job.yaml"})
    with pytest.raises(FileError, match="is a plan, whose cluster stands"):
        read_rented_job(tmp_path / "plan.yaml")
