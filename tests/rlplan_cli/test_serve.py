"""`rlplan serve`: who may ask, what is answered, and that it is what the command line says."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from starlette.requests import Request as WebRequest
from starlette.testclient import TestClient

from rlplan_cli.serve import app
from rlplan_cli.serve.app import HEADERS, LARGEST_QUESTION_BYTES, make_app
from rlplan_cli.serve.asked import LARGEST_BYTES, Asked, GivenFile
from rlplan_cli.serve.kept import MOST_KEPT, KeptAnswers, names_files
from rlplan_cli.serve.lanes import Dropped, Lane, LaneFailedError, Request
from rlplan_cli.serve.scripts import file_name, without_folders
from rlplan_cli.serve.work import Found
from tests.house.tree import ROOT
from tests.rlplan_cli.pages import SCRIPT, SMALL, TOKEN, ThreadLane, page_of_threads

HOSTILE = "<img src=x onerror=document.title='taken'>"


@pytest.fixture(scope="module")
def client():
    with TestClient(
        make_app(TOKEN, page_of_threads()), base_url=f"http://127.0.0.1:8000/{TOKEN}/"
    ) as found:
        yield found


def ask(client, work, asked, page="one", sequence=0):
    found = client.post(f"api/{work}", json={"page": page, "sequence": sequence, "asked": asked})
    assert found.status_code == 200, found.text
    return json.loads(found.text.splitlines()[-1])


def answer(client, work, asked, **more):
    found = ask(client, work, asked, **more)
    assert found["mistakes"] == []
    return found["answer"]


def mistake(client, work, asked):
    found = ask(client, work, asked)
    assert found["answer"] is None
    return found["mistakes"][0]


# ---------------------------------------------------------------------------------- who may ask


def test_the_page_and_its_parts_come_with_a_policy_that_lets_nothing_out(client):
    for path in ("", "assets/app.js", "assets/page.css", "assets/report.css", "api/catalog"):
        found = client.get(path)
        assert found.status_code == 200, path
        assert {name: found.headers[name] for name in HEADERS} == HEADERS
        assert "access-control-allow-origin" not in found.headers
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy


def test_formats_of_weights_alone_are_offered_for_rollouts_and_not_for_training(client):
    offered = client.get("api/catalog").json()
    more = set(offered["rollout_precisions"]) - set(offered["precisions"])
    assert more == {"mxfp4", "int4"}


@pytest.mark.parametrize(
    "path", ["/", "/wrong/", f"/{TOKEN[:-1]}/", "/wrong/api/catalog", "/x/y/z"]
)
def test_without_the_token_nothing_is_answered(client, path):
    found = client.get(f"http://127.0.0.1:8000{path}")
    assert found.status_code in {403, 404}
    assert b"script" not in found.content
    posted = client.post("http://127.0.0.1:8000/wrong/api/quick", json={"asked": SMALL})
    assert posted.status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""]
)
def test_names_that_were_made_to_point_here_are_refused(client, host):
    assert client.get("", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:9", "[::1]:8000", "localhost"])
def test_this_machines_own_names_are_answered(client, host):
    assert client.get("", headers={"host": host}).status_code == 200


def test_other_pages_and_other_kinds_of_requests_are_refused(client):
    asked = {"page": "p", "sequence": 0, "asked": SMALL}
    other = {"origin": "https://evil.example"}
    assert client.post("api/quick", json=asked, headers=other).status_code == 403
    form = {"content-type": "text/plain"}
    assert client.post("api/quick", content=json.dumps(asked), headers=form).status_code == 415
    assert client.get("api/quick").status_code in {403, 404, 405}
    assert client.post("api/warm", json=asked).status_code == 404
    for path in ("assets/..%2fapp.py", "assets/app.py", "assets/nothing.js"):
        assert client.get(path).status_code in {403, 404}


def test_what_is_too_large_or_no_question_is_refused(client):
    kind = {"content-type": "application/json"}
    large = b" " * (LARGEST_QUESTION_BYTES + 1)
    assert client.post("api/quick", content=large, headers=kind).status_code == 413
    halves = (b'{"asked": {"model": "\\ud800"}}', b'{"asked": {"mean_response_tokens": NaN}}')
    for body in (b"{", b"[]", b"\xff", b"[" * 100_000, *halves):
        assert client.post("api/quick", content=body, headers=kind).status_code == 422
    script = {"name": "run.sh", "text": "x" * (LARGEST_BYTES + 1)}
    found = mistake(client, "answer", {"script": script})
    assert (found["field"], found["problem"], found["allowed"]) == (
        "script",
        "is too large",
        "1 MiB",
    )


# ------------------------------------------------------------------- as the command line says it


def job_file(found):
    """Write the file that an answer's command reads, and return its name."""
    name = found["command"].split()[-1]
    Path(name).write_text(found["job_text"])
    return name


@pytest.mark.parametrize(
    "more", [{}, pytest.param({"mode": "async", "staleness": 2, "gpus": 4}, marks=pytest.mark.full)]
)
def test_an_answer_is_what_check_says_of_the_same_job(client, rlplan, tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    found = answer(client, "answer", {**SMALL, **more})
    told = rlplan("check", job_file(found), "--json").json
    check, forecast = found["check"], told["forecast"]
    assert (check["will_run"], check["memory"]) == (told["will_run"], told["memory"])
    step = check["step"]
    assert step["step_seconds"] == told["step_seconds"]
    assert step["interval_seconds"] == told["step_seconds_interval"]
    assert step["cost_usd"] == told["step_cost_usd"]
    assert step["tokens_per_second"] == forecast["tokens_per_second"]
    terms = [(each["pool"], each["terms"]) for each in forecast["memory"]]
    assert [(each["pool"], each["terms"]) for each in step["memory"]] == terms
    assert [each["step_seconds"] for each in check["better"]] == [
        each["seconds"] for each in told["better"]
    ]
    Path("plan.yaml").write_text(yaml.safe_dump(found["plan"]))
    simulated = rlplan("simulate", "plan.yaml", "--json").json
    assert simulated["iteration_seconds"] == step["step_seconds"]


def test_a_search_is_what_search_says_of_the_same_job(client, rlplan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = job_file(answer(client, "answer", SMALL))
    told = rlplan("search", job, "--json").json
    found = answer(client, "search", {**SMALL, "seconds": None})
    best = [each["forecast"]["iteration_seconds"] for each in told["plans"]]
    seconds = [each["step"]["step_seconds"] for each in found["plans"]]
    assert seconds == best[: len(seconds)]
    assert (found["gap"], found["space"]) == (told["gap"], told["space"])


def test_searches_say_how_far_they_are(client):
    asked = {"page": "searching", "sequence": 1, "asked": {**SMALL, "seconds": 1}}
    lines = [json.loads(line) for line in client.post("api/search", json=asked).text.splitlines()]
    assert len(lines) > 1
    assert all(set(each) == {"done", "total", "what"} for each in lines[:-1])
    assert lines[-1]["answer"]["plans"][0]["view"]["layouts"]


@pytest.mark.full
def test_what_fits_is_what_fit_says(client, rlplan):
    asked = {
        "model": "qwen2.5-0.5b",
        "gpu": "l4",
        "gpus": 1,
        "prompt_tokens": 64,
        "response_tokens": 512,
    }
    found = answer(client, "fit", asked)
    told = rlplan(
        "fit",
        "--model",
        "qwen2.5-0.5b",
        "--gpus",
        "1xl4",
        "--prompt",
        64,
        "--response",
        512,
        "--json",
    ).json
    for name in ("fits", "longest_response_tokens", "fewest_gpus"):
        assert found[name] == told[name]


def script_asked(text, **more):
    return {
        "script": {"name": "run.sh", "text": text},
        "gpu": "h100-80gb-sxm",
        "mean_response_tokens": 100,
        **more,
    }


@pytest.mark.parametrize("handed_on", [pytest.param(True, marks=pytest.mark.full), False])
def test_a_script_with_changes_is_what_check_says_of_it(
    client, rlplan, tmp_path, monkeypatch, handed_on
):
    monkeypatch.chdir(tmp_path)
    text = SCRIPT + (' "$@"\n' if handed_on else "\n")
    changes = {"response_tokens": 512, "gpus": 4}
    quick = answer(client, "quick", script_asked(text, changes=changes))
    found = answer(client, "answer", script_asked(text, changes=changes))
    assert found["framework"] == "verl"
    assert found["controls"]["response_tokens"] == 512
    assert found["controls"]["gpus"] == 4
    assert found["keys"]["response_tokens"] == "data.max_response_length"
    assert set(found["words"]) == {
        "data.max_response_length=512", "trainer.nnodes=1", "trainer.n_gpus_per_node=4",
    }  # fmt: skip
    assert (found["script_text"] is None) is handed_on
    Path("run.sh").write_text(found["script_text"] or text)
    told = rlplan(*found["command"].split()[1:], "--json").json
    assert found["check"]["step"]["step_seconds"] == told["step_seconds"]
    assert found["check"]["memory"] == told["memory"]
    assert quick["stage"] == "quick"
    assert quick["check"]["step"]["step_seconds"] == told["step_seconds"]


TURNS = """max_steps = 20
seq_len = 4096

[deployment]
num_train_gpus = 1
num_infer_gpus = 1

[model]
name = "Qwen/Qwen3-0.6B"

[orchestrator]
batch_size = 32
group_size = 4

[orchestrator.train.sampling]
max_completion_tokens = 256
"""


def test_the_mean_response_is_shown_of_the_length_that_it_is_a_share_of(client):
    """A recipe whose turns are limited, and not known in number, may have longer responses of many of them."""
    script = {"name": "rl.toml", "text": TURNS}
    found = answer(client, "answer", {"script": script, "mean_response_share": 0.5})
    controls = found["controls"]
    assert (controls["response_tokens"], controls["mean_response_tokens"]) == (256, 128)
    assert found["keys"]["response_tokens"] == "orchestrator.train.sampling.max_completion_tokens"


def test_what_acts_on_a_step_beside_its_tasks_is_said_on_the_page_too(client):
    rollout = "actor_rollout_ref.rollout"
    apart = f" {rollout}.disaggregation.enabled=True {rollout}.disaggregation.decode_replicas=1\n"
    check = answer(client, "answer", script_asked(SCRIPT + apart))["check"]
    (said,) = check["step"]["effects"]
    assert said.startswith("prefill apart: ")
    plain = answer(client, "answer", script_asked(SCRIPT + "\n"))["check"]
    assert plain["step"]["effects"] == []


@pytest.mark.parametrize("handed_on", [pytest.param(True, marks=pytest.mark.full), False])
def test_a_proposal_that_is_taken_gives_the_step_that_it_promised(client, handed_on):
    slow = "tensor_model_parallel_size=2"
    text = SCRIPT.replace("tensor_model_parallel_size=1", slow)
    text += ' "$@"\n' if handed_on else "\n"
    proposals = answer(client, "answer", script_asked(text))["check"]["better"]
    assert proposals
    best = proposals[0]
    found = answer(client, "answer", script_asked(text, taken=best["arguments"]))
    assert found["check"]["step"]["step_seconds"] == best["step_seconds"]
    assert found["words"] == best["arguments"]
    assert (found["script_text"] is None) is handed_on
    if not handed_on:
        assert all(word.lower() in found["script_text"].lower() for word in best["arguments"])


def test_of_two_taken_values_the_later_counts_and_a_control_more_than_both(client):
    key = "actor_rollout_ref.rollout.n"
    taken = [f"{key}=2", f"{key}=8"]
    found = answer(client, "answer", script_asked(SCRIPT + "\n", taken=taken))
    assert (found["words"], found["controls"]["samples_per_prompt"]) == ([f"{key}=8"], 8)
    more = script_asked(SCRIPT + "\n", taken=taken, changes={"samples_per_prompt": 16})
    found = answer(client, "answer", more)
    assert (found["words"], found["controls"]["samples_per_prompt"]) == ([f"{key}=16"], 16)


def test_taken_words_of_keys_that_nobody_knows_are_named(client):
    found = answer(client, "answer", script_asked(SCRIPT + "\n", taken=["trainer.nowhere=3"]))
    assert any("trainer.nowhere" in each for each in found["check"]["not_understood"])


@pytest.mark.parametrize("word", ["~actor_rollout_ref.rollout.n", "~data", "actor_rollout_ref"])
def test_words_of_a_link_that_give_no_key_a_value_are_refused_by_name(client, word):
    found = mistake(client, "answer", script_asked(SCRIPT + "\n", taken=[word]))
    assert (found["field"], found["value"]) == ("taken", word)


def test_a_script_that_stops_says_which_rules_it_breaks_and_where(client):
    text = SCRIPT.replace("ppo_mini_batch_size=32", "ppo_mini_batch_size=64") + "\n"
    found = answer(client, "answer", script_asked(text))
    (broken,) = [each for each in found["check"]["findings"] if each["stops"]]
    assert (found["check"]["will_run"], broken["where"]) == (False, "run.sh:10")


def test_a_key_that_the_script_does_not_have_is_put_beside_another(client):
    text = SCRIPT.replace("    data.max_response_length=256 \\\n", "") + "\n"
    found = answer(client, "answer", script_asked(text, changes={"response_tokens": 384}))
    assert found["controls"]["response_tokens"] == 384
    assert "data.max_response_length=384" in found["script_text"]


def test_a_plan_is_written_as_export_writes_it_with_the_keys_that_differ(
    client, rlplan, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    asked = script_asked(SCRIPT + "\n", framework="verl")
    found = answer(client, "search", {**asked, "seconds": 1})
    best = found["plans"][0]["plan"]
    written = answer(client, "export", {**asked, "plan": best, "to": "verl"})
    Path("plan.yaml").write_text(written["plan_text"])
    assert written["text"] == rlplan("export", "plan.yaml", "--to", "verl").out
    given = set(SCRIPT.split())
    assert written["words"]
    assert not given & set(written["words"])
    assert not any(word.startswith("actor_rollout_ref.actor.optim.") for word in written["words"])
    taken = answer(client, "answer", {**asked, "taken": written["words"]})
    best_seconds = found["plans"][0]["step"]["step_seconds"]
    assert taken["check"]["step"]["step_seconds"] == pytest.approx(best_seconds, rel=1e-9)


def test_a_log_is_what_check_step_says_of_it(client, rlplan, project):
    from tests.rlplan_cli.test_check_step_command import write_log

    write_log(9.0)
    plan = yaml.safe_load(Path("plan.yaml").read_text())
    plan["job"]["prompts_file"] = None
    log = {"name": "train.log", "text": Path("train.log").read_text()}
    found = answer(client, "check_step", {"log": log, "plan": plan})
    told = rlplan("check-step", "train.log", "--plan", "plan.yaml", "--json").json
    assert (found["verdict"], found["steps"]) == (told["verdict"], told["steps"])
    for mine, theirs in zip(found["stages"], told["stages"], strict=True):
        assert mine["measured_seconds"] == theirs["measured_seconds"]
        assert mine["forecast_seconds"] == theirs["forecast_seconds"]
        assert mine["verdict"] == theirs["verdict"]


# -------------------------------------------------------------------- answers that are kept, quick ones


def counted(page):
    """Return the works that a page's lanes are asked from now on."""
    done = []
    for lane in (page.quick, page.whole, page.long):

        def talk(request, progress, before=lane._talk):
            done.append(request.work)
            return before(request, progress)

        lane._talk = talk
    return done


def test_what_was_answered_is_answered_again_at_once_and_counts_as_the_quick_answer_too():
    page = page_of_threads()
    done = counted(page)
    with TestClient(make_app(TOKEN, page), base_url=f"http://127.0.0.1/{TOKEN}/") as client:
        first = answer(client, "answer", SMALL, page="a")
        answer(client, "answer", {**SMALL, "response_tokens": 48}, page="a", sequence=1)
        assert done == ["answer", "answer"]
        for number, work in enumerate(("quick", "answer")):
            assert answer(client, work, SMALL, page="b", sequence=number) == first
        assert done == ["answer", "answer"]
        # The next estimate is of that answer's layout.
        answer(client, "quick", {**SMALL, "gpus": 4}, page="b", sequence=3)
        assert done[2:] == ["quick"]


def test_mistakes_searches_that_ended_early_and_what_files_say_are_not_kept(tmp_path):
    page = page_of_threads()
    done = counted(page)
    config = tmp_path / "config.json"
    sizes = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 260, "max_position_embeddings": 512}  # fmt: skip
    with TestClient(make_app(TOKEN, page), base_url=f"http://127.0.0.1/{TOKEN}/") as client:
        seconds = []
        for layers in (2, 4):
            config.write_text(json.dumps({**sizes, "num_hidden_layers": layers}))
            own = answer(client, "answer", {**SMALL, "model": str(tmp_path)})
            seconds.append(own["check"]["step"]["step_seconds"])
        assert seconds[0] < seconds[1]
        for _ in range(2):
            ask(client, "answer", {**SMALL, "model": "nobody/knows-it"})
            answer(client, "search", {**SMALL, "seconds": 0})
        assert done == ["answer"] * 2 + ["answer", "search"] * 2


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("#!/bin/bash\npython3 -m verl.trainer.main_ppo model=Qwen/Qwen3-8B > /dev/null", False),
        ("MODELS=/tmp\npython3 -m verl.trainer.main_ppo model=$MODELS/x", True),
        ("x=~/ y=1", True),
        ("x=~nobodyatall/ /\0/ " + "a/" * 9000, False),
        (" ".join(f"{number}/x" for number in range(3000)), True),
        ("python3 -m verl.trainer.main_ppo model=mymodel", True),
        ("a" * 1_000_000, False),  # at once
    ],
)
def test_a_script_that_may_name_files_of_this_machine_is_told(text, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mymodel").mkdir()
    asked = Asked(script=GivenFile(name="run.sh", text=text))
    assert names_files(asked) is names


def test_few_answers_are_kept_the_ones_asked_for_last():
    kept, found = KeptAnswers(), Found({"check": 1})
    asked = [Asked(gpus=number) for number in range(1, MOST_KEPT + 3)]
    for each in asked:
        kept.keep("answer", each, found)
        assert kept.get("answer", asked[0]) is found
    assert kept.get("answer", asked[1]) is None
    assert kept.get("answer", asked[-1]) is found
    assert kept.get("fit", asked[-1]) is None


def test_a_quick_answer_has_the_layout_of_the_last_one(client):
    whole = answer(client, "answer", SMALL, page="two")
    more = answer(client, "quick", {**SMALL, "gpus": 4}, page="two")
    sizes = {
        each["task"]: (each["tp"], each["pp"], each["dp"]) for each in whole["view"]["layouts"]
    }
    for each in more["view"]["layouts"]:
        tp, pp, dp = sizes[each["task"]]
        assert (each["tp"], each["pp"], each["dp"]) == (tp, pp, 2 * dp)


@pytest.mark.parametrize("mode", ["sync", "async", "one-step-off", "streaming"])
@pytest.mark.parametrize("framework", [None, "verl-fsdp"])
def test_a_first_quick_answer_has_a_usual_layout(client, mode, framework):
    """Where passes over the actor are beside its training (verl's, in modes that overlap), they shard it as that does."""
    asked = {**SMALL, "mode": mode, "framework": framework}
    found = answer(client, "quick", asked, page=f"page of {mode}")
    assert found["check"]["memory"] == "fits"
    assert found["view"]["mode"] == mode


def test_a_first_plan_is_simulated_and_says_by_how_much_another_may_be_better(client):
    asked = {**SMALL, "mode": "async", "staleness": 1.0}
    found = answer(client, "first", asked, page="first")
    assert found["stage"] == "first"
    assert found["check"]["memory"] == "fits"
    assert found["view"]["mode"] == "async"
    assert 0 <= found["gap"] < 1
    whole = answer(client, "answer", asked, page="first")
    assert whole["gap"] is None
    first, best = (each["check"]["step"]["step_seconds"] for each in (found, whole))
    assert first * (1 - found["gap"]) <= best * (1 + 1e-9) <= first * (1 + 2e-9)
    # What was answered whole is as quick.
    assert answer(client, "first", asked, page="first", sequence=1)["stage"] == "simulated"


def test_a_script_has_no_first_plan(client):
    assert mistake(client, "first", script_asked(SCRIPT))["field"] == "script"


def test_an_older_question_is_dropped(client):
    answer(client, "quick", SMALL, page="three", sequence=7)
    late = {"page": "three", "sequence": 6, "asked": SMALL}
    assert client.post("api/quick", json=late).status_code == 409


def test_a_question_that_waits_is_dropped_for_a_newer_one():
    lane, order = ThreadLane("quick"), []
    talk = lane._talk

    def slow(request, progress):
        order.append(request.sequence)
        return talk(request, progress)

    lane._talk = slow

    async def asked():
        questions = (lane.ask(Request("warm", None, "p", number)) for number in range(5))
        return await asyncio.gather(*questions, return_exceptions=True)

    found = asyncio.run(asked())
    assert order[-1] == 4
    assert len(order) <= 2
    assert sum(isinstance(each, Dropped) for each in found) >= 3


# --------------------------------------------------------------------------------- wrong inputs


@pytest.mark.parametrize(
    ("asked", "field", "hint"),
    [
        ({"model": "qwen2.5-8b"}, "models.actor", "qwen2.5-7b"),
        ({"algorithm": "gppo"}, None, "grpo"),
        ({"gpus": 0}, "gpus", None),
        ({"modle": "tiny"}, "modle", "mode"),
        ({"mean_response_tokens": 4000}, "mean_response_tokens", None),
        ({"model": HOSTILE}, "models.actor", None),
    ],
)
def test_what_is_wrong_is_said_with_its_field(client, asked, field, hint):
    found = mistake(client, "answer", {**SMALL, **asked})
    assert found["field"] == field
    assert hint is None or hint in f"{found['hint']} {found['message']}"


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "C:\\x\\run.sh", "a b$(x).sh", "", "..", HOSTILE]
)
def test_files_are_kept_under_plain_names(client, name):
    kept = file_name(GivenFile(name=name, text=""))
    assert re.fullmatch(r"\w[\w.-]*\.\w+", kept), kept
    found = mistake(client, "answer", {"script": {"name": name, "text": "echo $(touch /tmp/x)"}})
    assert "rlplan-page-" not in found["message"]


def test_paths_of_private_folders_are_left_out_of_what_is_said():
    told = {"a": ["(/tmp/rlplan-lane-a/rlplan-page-x_1/run.sh:4)", "k=/t/rlplan-page-b/run.sh"]}
    assert without_folders(told) == {"a": ["(run.sh:4)", "k=run.sh"]}
    long = "a" * LARGEST_BYTES
    assert without_folders(long) == long  # at once


def test_fit_is_not_asked_of_a_script(client):
    assert mistake(client, "fit", script_asked(SCRIPT))["field"] == "script"


def test_a_script_is_not_run(client, tmp_path):
    left = tmp_path / "left"
    text = f"touch {left}\n$(touch {left})\n" + SCRIPT + f"\ntouch {left}\n"
    answer(client, "answer", script_asked(text))
    assert not left.exists()


# ---------------------------------------------------------------------------- processes of their own


@pytest.mark.full
def test_a_lane_is_a_process_that_is_stopped_and_started_again():
    async def asked():
        lane = Lane("search")
        first = await lane.ask(Request("warm", None))
        worker = lane._worker
        left = Path(worker.folder.name) / "script.sh"
        left.write_text("of somebody")
        search = asyncio.ensure_future(lane.ask(Request("fit", None)))
        await asyncio.sleep(0)
        search.cancel()
        with pytest.raises((asyncio.CancelledError, LaneFailedError)):
            await search
        again = await lane.ask(Request("warm", None))
        lane.stop()
        return first, again, worker.process.exitcode, left

    first, again, code, left = asyncio.run(asked())
    assert first == again
    assert code is None or code < 0
    assert not left.parent.exists()


def test_what_nobody_waits_for_any_more_is_ended(monkeypatch):
    async def left():
        return {"type": "http.disconnect"}

    ended = []

    async def long():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("long")

    monkeypatch.setattr(app, "LONGEST_STALE_SECONDS", 0.01)
    found = asyncio.run(app._told(WebRequest({"type": "http"}, left), long))
    assert (found.status_code, ended) == (app.DROPPED, ["long"])


def test_a_failure_of_our_own_is_told_and_the_next_question_answered(client, monkeypatch, capsys):
    lane = ThreadLane("quick")

    def failing(_request, _progress):
        raise LaneFailedError("Traceback\nZeroDivisionError: division by zero\n")

    lane._talk = failing
    page = page_of_threads()
    page.quick = lane
    with TestClient(make_app(TOKEN, page), base_url=f"http://127.0.0.1/{TOKEN}/") as other:
        found = other.post("api/quick", json={"asked": SMALL})
        assert found.status_code == 500
        assert "ZeroDivisionError" in found.text
        assert answer(other, "answer", SMALL)["check"]["memory"] == "fits"


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full)],
)
def test_the_command_prints_its_link_and_ends_by_a_signal(number, code):
    command = [sys.executable, "-m", "rlplan", "serve", "--no-open"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        line = running.stderr.readline()
        link = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/", line)
        assert link, line
        running.send_signal(number)
        rest = running.stderr.read()
        assert running.wait(60) == code
    assert rest == "rlplan: interrupted\n"


def test_a_port_that_is_taken_is_named(rlplan):
    from rlplan_cli.serve.app import bound

    with bound(0) as sock:
        port = sock.getsockname()[1]
        sock.listen()
        found = rlplan("serve", "--no-open", "--port", port)
    assert found.code == 2
    assert found.err.startswith("rlplan: --port: cannot be used")
