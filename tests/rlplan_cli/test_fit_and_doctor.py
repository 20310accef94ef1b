"""`rlplan fit` says yes or no with terms and numbers around it; `rlplan doctor` what is there and missing."""

import json
from importlib.metadata import version

import pytest

from rlplan.files.decoding import load_yaml
from rlplan.profiles.catalog import load_model

FIT = ("fit", "--model", "tiny", "--algorithm", "grpo")


@pytest.mark.full
def test_a_model_that_fits_is_told_so_with_its_terms_and_the_limits_around_it(rlplan):
    answer = rlplan(*FIT, "--gpus", "2xcpu")
    assert answer.code == 0, answer.err
    yes, fits, longest, smallest = answer.out.splitlines()[:4]
    assert yes.startswith("yes: tiny, grpo (16 prompts, 4 samples each")
    assert fits.startswith("fits: ")
    # The model was made for 512 positions, and prompts have 16 of them.
    assert longest == "longest response that fits there: 496 tokens"
    assert smallest == "smallest cluster that fits: 1 GPU"
    assert "Memory of the fullest GPU" in answer.out
    assert "activations" in answer.out


@pytest.mark.full
def test_one_that_does_not_is_told_the_terms_and_what_would_do(rlplan):
    answer = rlplan("fit", "--model", "qwen2.5-7b", "--gpus", "1xl40s", "--response", "256")
    assert answer.code == 2
    no, misfit, longest, smallest = answer.out.splitlines()[:4]
    assert no.startswith("no: qwen2.5-7b, grpo")
    assert misfit.startswith("does not fit: ")
    assert longest.endswith("none of 1,024 tokens or more")
    assert smallest.removeprefix("smallest cluster that fits: ") in {f"{n} GPUs" for n in (2, 4, 8)}
    assert "actor optimizer states" in answer.out
    assert "does not fit: pool " in answer.err


def test_a_model_of_the_local_cache_is_asked_for_by_its_id(rlplan, tmp_path, monkeypatch):
    config = load_model("tiny")
    keys = {"hidden_size": config.hidden_size, "num_hidden_layers": 1, "vocab_size": 256}
    keys |= {"intermediate_size": 64, "num_attention_heads": 2, "max_position_embeddings": 64}
    folder = tmp_path / "models--acme--New-1B" / "snapshots" / "0123"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(keys | {"model_type": "llama"}), "utf-8")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    asked = ("--gpus", "1xcpu", "--algorithm", "grpo", "--prompt", "8", "--response", "8")
    answer = rlplan("fit", "--model", "acme/New-1B", *asked)
    assert answer.code == 0, answer.err
    assert answer.out.startswith("yes: acme/New-1B, grpo")


def test_a_model_that_fills_all_but_a_hundredth_fits_perhaps(rlplan):
    asked = ("--gpus", "8xh100", "--algorithm", "grpo", "--response", "8192")
    answer = rlplan("fit", "--model", "qwen2.5-32b", *asked)
    assert answer.code == 0, answer.err
    first, filled = answer.out.splitlines()[:2]
    assert first.startswith("perhaps: qwen2.5-32b, grpo")
    assert filled.startswith("may not fit: ")
    assert "half of measured peaks are further off" in answer.err


@pytest.mark.parametrize("gpus", ["8", "h100", "0xh100", "8xh1000"])
def test_gpus_that_are_none_are_refused_in_one_line(rlplan, gpus):
    answer = rlplan(*FIT, "--gpus", gpus)
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert "h100" in answer.err


def test_the_type_of_gpus_may_be_said_apart_as_other_commands_take_it(rlplan):
    apart = rlplan(*FIT, "--gpus", "2", "--gpu", "cpu")
    assert (apart.code, apart.out) == (0, rlplan(*FIT, "--gpus", "2xcpu").out)
    untold = rlplan(*FIT, "--gpus", "8")
    assert "--gpus: names no type of GPUs; found '8'" in untold.err
    assert untold.err.strip().endswith("or their type beside: --gpu h100")
    twice = rlplan(*FIT, "--gpus", "2xcpu", "--gpu", "h100")
    assert (twice.code, len(twice.lines)) == (2, 1)
    assert "--gpu: names a type beside that of --gpus; found 'h100'" in twice.err


def test_a_mean_that_is_said_is_the_job_s_and_a_step_is_shorter_than_one_of_longest_responses(
    rlplan,
):
    asked = (*FIT[:3], "--gpus", "2xcpu", "--response", "64", "--json")
    longest, mean = (
        json.loads(rlplan(*asked, *also).out) for also in ((), ("--mean-response", "16"))
    )
    assert mean["plan"]["job"]["workload"]["response_tokens"]["max"] == 64
    assert mean["longest_response_tokens"] == longest["longest_response_tokens"]
    seconds = [each["forecast"]["iteration_seconds"] for each in (mean, longest)]
    assert seconds[0] < seconds[1]
    most = rlplan(*asked[:-1], "--mean-response", "65")
    assert (most.code, most.lines) == (
        2,
        [
            "rlplan: a mean response of 65 tokens is longer than the longest; allowed: at most 64",
        ],
    )


def test_a_first_job_has_the_means_that_are_said(rlplan, tmp_path):
    means = ("--mean-prompt", "9", "--mean-response", "12")
    path = tmp_path / "my job.yaml"
    answer = rlplan("init", str(path), *means)
    assert answer.code == 0
    assert answer.err.rstrip().endswith(f"next: rlplan search '{path}'")
    work = load_yaml(path)["workload"]
    assert work["prompt_tokens"] == {"distribution": "logged", "mean": 9, "max": 16}
    assert work["response_tokens"] == {"distribution": "logged", "mean": 12, "max": 16}


def test_doctor_shows_versions_devices_and_what_to_do(rlplan):
    answer = rlplan("doctor")
    assert answer.code == 0
    assert version("torch") in answer.out
    found = {row["what"]: row for row in rlplan("doctor", "--json").json}
    assert found["planning"]["found"] == "installed"
    assert "cores" in found["CPU"]["found"]
    missing = [row for row in found.values() if row["found"] == "missing"]
    assert all("pip install" in row["to_do"] for row in missing)
