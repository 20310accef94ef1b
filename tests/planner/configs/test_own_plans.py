"""Configurations that people ran: the plan that each is can be told to its framework again, and is among those searched."""

import csv
from functools import cache

import pytest

from rlplan.errors import FileError, InfeasibleError, UserError
from rlplan.planner.configs.frameworks import frameworks_with
from rlplan.planner.configs.proposing import searching
from rlplan.planner.configs.proposing.searching import plans_of
from rlplan.planner.configs.writing.exporting import exported
from rlplan.profiles.facts import load_facts
from rlplan_cli.config_options import GivenOptions
from rlplan_cli.configured import configured
from tests.cases import first
from tests.house.tree import ROOT

CASES = ROOT / "evals" / "held" / "fit"
WRITTEN = frameworks_with("keys", "writing")
# What no key of theirs can say, or their own rules refuse: words of the message, by case.
NOT_WRITTEN = {
    "areal-a40": "offload: cannot be told",
    "areal-one-gpu": "offload: cannot be told",
    "gptoss-a10g": "does not divide over 12 copies",
    "miles-30b-ci": "job.rollout_precision: cannot be told",
    "miles-opd-35b": "job.models.teacher: is no role of it",
    "openrlhf-887": "takes nodes of 8 GPUs in part",
    "slime-4b-32k": "job.old_log_prob: cannot be told",
    "slime-122b-lora": "trains an adapter; slime main of August 2026 cannot do that",
    "search-r1-62": "leaves an update a part of a prompt",
    "search-r1-80": "leaves an update a part of a prompt",
    "toolrl-53": "does not divide the 128 samples of an update on a rank",
    "trl-2972": "is wrapped otherwise than by DeepSpeed",
    "trl-naive-7b": "is wrapped otherwise than by DeepSpeed",
    "trl-3456": "is wrapped otherwise than by DeepSpeed",
    "trl-3678": "is wrapped otherwise than by DeepSpeed",
    "trl-5759": "is wrapped otherwise than by DeepSpeed",
    "verl-0.6b-padded": "does not divide the 256 samples of an update on a rank",
}
# Of each kind that was refused once: logits kept in 16 bits, states on the host, an optimizer that steps there, tokens
# gathered by all ranks of experts, a model whose layers flags do not describe, prompts begun beyond those waited for; adapters
# whose matrices are units of FSDP 1.
ONCE_REFUSED = (
    pytest.param("openrlhf-605", marks=pytest.mark.full),
    "verl-lora-0.5b",
    pytest.param("nemo-2619", marks=pytest.mark.full),
    pytest.param("openrlhf-756", marks=pytest.mark.full),
    pytest.param("slime-glm4.7-355b-a32b", marks=pytest.mark.full),
    pytest.param("slime-deepseek-r1", marks=pytest.mark.full),
)


# Of all cases: one of them by default.
PARTS = 6


@cache
def rows():
    """Return the files of cases by name, framework and options; of a case that comes several times each file once."""
    found = {}
    for row in csv.DictReader((CASES / "cases.csv").read_text().splitlines()):
        if row["framework"] in WRITTEN:
            found.setdefault((row["case"], row["file"]), row)
    return tuple(found.values())


def read(row):
    """Return what a case's file says, and its plan; None where it has none by itself."""
    words = row["arguments"].split()
    options = dict(zip(words[::2], words[1::2], strict=True)) if len(words) % 2 == 0 else {}
    try:
        response, prompt = (
            float(options[name]) if name in options else None
            for name in ("--mean-response", "--mean-prompt")
        )
        given = GivenOptions(
            gpu=options.get("--gpu", "h100"), mean_response=response, mean_prompt=prompt
        )
        script = configured(CASES / row["case"] / row["file"], given)
        assert script is not None
        return script, *script.plan()
    except UserError:
        return None


def told(row):
    """Return the message of a refusal; empty where a case's own plan is told to its framework, None where it has none."""
    found = read(row)
    if found is None:
        return None
    script, plan, facts = found
    try:
        exported(plan, script.found.settings.sheet.name, file=script.file, facts=facts)
    except FileError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("part", first(1, range(PARTS)))
def test_plans_that_people_ran_are_told_to_their_framework_again(part):
    messages = {(row["case"], row["file"]): told(row) for row in rows()[part::PARTS]}
    answered = {case: message for case, message in messages.items() if message is not None}
    assert len(answered) > 15
    refused = {case: message for case, message in answered.items() if message}
    for (case, file), message in refused.items():
        assert NOT_WRITTEN.get(case, "no such case") in message, (case, file, message)


@pytest.mark.parametrize("case", ONCE_REFUSED)
def test_what_was_refused_once_is_told_and_searched(case):
    row = next(each for each in rows() if each["case"] == case)
    assert told(row) == ""
    script, plan, _ = read(row)
    found = plans_of(script.job, load_facts, as_it_stands=plan)
    assert found.plans


def test_a_script_s_own_plan_stands_where_its_framework_takes_none_that_was_found(monkeypatch):
    def refused(plan, *_, **__):
        raise FileError("plan", "would stop", field="tasks.actor.update.dp")

    row = next(each for each in rows() if each["case"] == "verl-lora-0.5b")
    script, plan, _ = read(row)
    monkeypatch.setattr(searching, "exported", refused)
    found = plans_of(script.job, load_facts, as_it_stands=plan)
    assert [each.plan.tasks for each in found.plans] == [plan.tasks]
    assert (found.gap, found.bound_seconds) == (1.0, 0.0)
    assert "no other was found that its framework takes" in found.space
    with pytest.raises(InfeasibleError, match=r"would stop"):
        plans_of(script.job, load_facts)
