"""Texts that are mixed into updates: read, cut, and joined with the responses of their update."""

from dataclasses import replace

import pytest
import torch

from rlplan.algorithms import load_algorithm
from rlplan.errors import FileError
from rlplan.executor.data.batches import PROMPT, RESPONSE
from rlplan.executor.data.prompts import ByteTokenizer
from rlplan.executor.data.workload import TextBatches
from rlplan.executor.learning.experience import make_experience
from rlplan.job import Pretrain
from tests.executor.plans import make_job

JOB = make_job("safe-rlhf", prompts=4, prompt_tokens=2, response_tokens=2, updates=2)


def with_texts(tmp_path, *texts):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
    return replace(JOB, pretrain=Pretrain(file=str(path), coefficient=0.5))


def test_texts_are_padded_on_the_right_and_cut_to_the_longest_sequence(tmp_path):
    job = with_texts(tmp_path, "a", "bcdefgh")
    columns = TextBatches(job, ByteTokenizer(), tmp_path).columns(0)
    assert columns["pretrain_tokens"].shape == (4, 4)
    rows = {tuple(row) for row in columns["pretrain_tokens"].tolist()}
    assert rows == {(257, 97, 256, 256), (257, 98, 99, 100)}
    for tokens, parts in zip(columns["pretrain_tokens"], columns["pretrain_parts"], strict=True):
        assert (parts == PROMPT).tolist() == (tokens != 256).tolist()


def test_texts_are_made_up_where_the_job_names_no_file(tmp_path):
    job = replace(JOB, pretrain=Pretrain())
    ours, again = (TextBatches(job, ByteTokenizer(), tmp_path).columns(3) for _ in range(2))
    assert ours["pretrain_tokens"].tolist() == again["pretrain_tokens"].tolist()
    assert ours["pretrain_tokens"].shape == (4, 4)


@pytest.mark.parametrize("line", ['{"txt": "a"}', '{"text": 3}', '{"text": ""}'])
def test_a_row_without_a_text_is_named(tmp_path, line):
    path = tmp_path / "texts.jsonl"
    path.write_text(line)
    job = replace(JOB, pretrain=Pretrain(file=str(path)))
    with pytest.raises(FileError, match="line 1: text: is"):
        TextBatches(job, ByteTokenizer(), tmp_path)


def columns_of(response_lengths):
    """Return rows of one prompt token and these responses, cost 1 for each, and values of zero."""
    width, rows = 3, len(response_lengths)
    parts = torch.zeros(rows, width, dtype=torch.int8)
    parts[:, 0] = PROMPT
    for row, length in enumerate(response_lengths):
        parts[row, 1 : 1 + length] = RESPONSE
    zeros = torch.zeros(rows, width)
    return {
        "tokens": torch.arange(rows)[:, None].expand(rows, width),
        "parts": parts,
        "log_probs": zeros,
        "reference_log_probs": zeros,
        "values": zeros,
        "rule_scores": torch.arange(rows).float(),
        "rule_costs": torch.ones(rows),
        "pretrain_tokens": 100 + torch.arange(rows)[:, None].expand(rows, 4),
        "pretrain_parts": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]]),
    }


def test_each_update_sees_its_texts_after_its_responses():
    job = replace(JOB, pretrain=Pretrain(coefficient=0.5))
    algorithm, columns = load_algorithm("safe-rlhf"), columns_of([2, 2, 1, 1])
    rows, sums = make_experience(job, algorithm, columns, {"lagrange_multiplier": 1.0}, lambda x: x)
    assert rows["tokens"][:, 0].tolist() == [0, 1, 100, 101, 2, 3, 102, 103]
    assert {column.shape for column in rows.values()} == {(8, 4)}
    assert rows["response_mask"].sum(dim=1).tolist() == [2, 2, 0, 0, 1, 1, 0, 0]
    # The first update has 4 response tokens and texts that predict 3 + 1 tokens: 0.5 * 4 / 4 each.
    assert rows["text_weights"][:4].tolist() == [
        [0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0],
        [0.0, 0.5, 0.5, 0.5],
        [0.0, 0.5, 0.0, 0.0],
    ]
    # The second one has 2 response tokens and texts that predict 0 + 2.
    assert rows["text_weights"][7].tolist() == [0.0, 0.5, 0.5, 0.0]
    assert (rows["advantages"][2:4] == 0).all()
    assert sums["reward_sum"] == 6.0
    assert sums["cost_sum"] == 4.0


def test_without_texts_the_rows_are_those_of_the_responses():
    columns = {k: v for k, v in columns_of([2, 2, 1, 1]).items() if "pretrain" not in k}
    algorithm = load_algorithm("safe-rlhf")
    rows, _ = make_experience(JOB, algorithm, columns, {"lagrange_multiplier": 1.0}, lambda x: x)
    assert rows["tokens"][:, 0].tolist() == [0, 1, 2, 3]
    assert "text_weights" not in rows
