"""GPUs and tokens as people type them."""

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.files.decoding import load_yaml
from rlplan_cli.amounts import GivenGpus, gpus_of, number_of_gpus, tokens_of, whole_tokens_of


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("8xh100", (8, None, "h100")),
        ("8 X H100", (8, None, "H100")),
        ("2x8xh100", (16, 8, "h100")),
        ("H100:16", (16, None, "H100")),
        ("gb200:18x4", (72, 4, "gb200")),
        ("8 * rtx-4090", (8, None, "rtx-4090")),
    ],
)
def test_gpus_are_read_with_their_type_before_or_behind(text, found):
    assert gpus_of(text) == GivenGpus(*found)


@pytest.mark.parametrize(
    "text", ["", "8", "h100", "0xh100", "h100:0", "x8", "2x0xh100", "8x", "-8xh100"]
)
def test_what_names_no_gpus_is_refused_with_examples(text):
    with pytest.raises(FileError, match="such as 8xh100, 2x8xh100"):
        gpus_of(text)


def test_a_number_alone_is_taken_where_the_type_is_known():
    assert gpus_of("16", alone=True) == GivenGpus(16, None, "")
    assert gpus_of("2x8", alone=True) == GivenGpus(16, 8, "")
    assert (number_of_gpus("16"), number_of_gpus("2x8")) == (16, 16)
    with pytest.raises(typer.BadParameter, match="such as 16 or 2x8"):
        number_of_gpus("many")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("600", 600), ("8k", 8192), ("1.5K", 1536), ("8,192", 8192), ("1m", 1048576)],
)
def test_tokens_are_counted_in_powers_of_two(text, tokens):
    assert tokens_of(text) == tokens


@pytest.mark.parametrize(
    "text", ["", "k", "-8k", "0", "8kb", "inf", "nan", "1e3x", "8,5k", "9" * 400]
)
def test_what_is_no_number_of_tokens_is_refused(text):
    with pytest.raises(typer.BadParameter, match="such as 8192 or 8k"):
        tokens_of(text)


def test_tokens_of_a_limit_are_whole():
    with pytest.raises(typer.BadParameter, match="whole"):
        whole_tokens_of("0.7")


@given(nodes=st.integers(1, 999), each=st.integers(1, 99), device=st.sampled_from(["h100", "l40s"]))
def test_all_forms_of_the_same_gpus_are_as_many(nodes, each, device):
    typed = gpus_of(f"{nodes}x{each}x{device}")
    assert typed == gpus_of(f"{device}:{nodes}x{each}")
    assert typed.number == gpus_of(f"{nodes * each}x{device}").number


def test_a_job_is_begun_in_ones_own_words(rlplan, tmp_path):
    path = str(tmp_path / "job.yaml")
    words = ("--gpus", "2x4xh100", "--framework", "verl", "--response", "8k", "--batch", "128")
    answer = rlplan(
        "init", path, "--algorithm", "grpo", "--model", "qwen2.5-7b", *words, "--samples", "8"
    )
    assert answer.code == 0, answer.err
    job = load_yaml(tmp_path / "job.yaml")
    work, nodes = job["workload"], job["cluster"][0]
    assert (work["prompts"], work["samples_per_prompt"], work["response_tokens"]) == (128, 8, 8192)
    assert (nodes["nodes"], nodes["gpus_per_node"], job["framework"]) == (2, 4, "verl")
    twice = rlplan("init", path, "--force", "--gpu", "h100", "--gpus", "8xh100")
    assert (twice.code, len(twice.lines)) == (2, 1)
