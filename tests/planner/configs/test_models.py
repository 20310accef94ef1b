"""Names of models lead to the sheet of their sizes, also where many sheets have like names."""

import pytest

from rlplan.planner.configs.models import model_of, notes_of_names


@pytest.mark.parametrize(
    ("named", "sheet"),
    [
        # Those of like names, or of the same sizes.
        ("Qwen/Qwen2-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b"),
        ("google/gemma-2-2b-it", "gemma-2-2b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("zai-org/GLM-4.5-Air", "glm-4.5-air"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        # Models of their own beside those, and fine-tunes of others.
        ("Qwen/QwQ-32B", "qwq-32b"),
        ("Qwen/QwQ-32B-Preview", "qwen2.5-32b"),
        ("Qwen/Qwen2-Math-7B-Instruct", "qwen2-math-7b"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-coder-30b-a3b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("google/gemma-2b-it", "gemma-2b"),
        ("meta-llama/Meta-Llama-3-70B-Instruct", "llama-3-70b"),
        ("Qwen/Qwen2-57B-A14B", "qwen2-57b-a14b"),
        ("Qwen/Qwen2-57B-A14B-Instruct", "qwen2-57b-a14b-instruct"),
        ("zai-org/GLM-4.7", "glm-4.6"),
        ("zai-org/GLM-4.7-Flash", "glm-4.7-flash"),
        ("agentica-org/DeepScaleR-1.5B-Preview", "deepseek-r1-distill-qwen-1.5b"),
        ("PRIME-RL/Eurus-2-7B-SFT", "qwen2.5-math-7b"),
        # Folders of one's own: joined by underscores, with checkpoints inside.
        ("/nas/saves/Qwen2.5-Coder-3B_lemmas_kept_sft", "qwen2.5-3b"),
        ("/srv/Qwen2.5-Math-7B-gsm8k-p0.5-8GPUs/final/actor_hf", "qwen2.5-math-7b"),
        ("/ckpts/sft_qwen_35_27b_2603/step_903/hf/", "qwen3.5-27b"),
        ("out/Qwen3-8B_rl/v0-20260321-101502/checkpoint-200-merged", "qwen3-8b"),
    ],
)
def test_a_model_has_the_sheet_of_its_sizes(named, sheet):
    assert model_of(named) == sheet


@pytest.mark.parametrize(
    "named", ["LongCat-Flash-Lite", "LongCat-Flash-Omni", "model_7b", "my_best_ckpt"]
)
def test_a_smaller_or_wider_model_of_a_series_is_not_taken_for_it(named):
    assert model_of("meituan-longcat/LongCat-Flash-Thinking-2601") == "longcat-flash"
    assert model_of(f"meituan-longcat/{named}") is None


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", ()),
        ("/models/qwen2_5-7b-instruct", ()),
        ("google/medgemma-27b-it", ()),  # an id that a sheet lists
        ("out/Qwen3-8B_rl/actor_hf", ("out/Qwen3-8B_rl/actor_hf is taken for qwen3-8b, by its name; --model says another",)),
    ],
)  # fmt: skip
def test_a_model_that_is_known_by_words_of_its_name_alone_is_said(named, said):
    assert tuple(notes_of_names([(named, model_of(named))])) == said
