"""Programs that load a model with Unsloth: who generates, and where."""

from dataclasses import replace

import pytest

from rlplan.planner.configs.importing import imported
from tests.planner.configs.test_trl import OPTIONS


@pytest.mark.parametrize(
    ("mode", "pools"), [("", ["train"]), ("vllm_mode='server', ", ["rollout", "train"])]
)
def test_unsloth_s_models_bring_their_engine_along(tmp_path, mode, pools):
    program = tmp_path / "own.py"
    program.write_text(
        "model, tokenizer = FastLanguageModel.from_pretrained('unsloth/Qwen2.5-0.5B', fast_inference=True,\n"
        "  gpu_memory_utilization=0.75)\n"
        f"args = GRPOConfig('o', {mode}use_vllm=True, per_device_train_batch_size=8, num_generations=8,\n"
        "  max_prompt_length=512, max_completion_length=512)\n"
        "GRPOTrainer(model, args=args)\n",
        encoding="utf-8",
    )
    found = imported("trl", [str(program)], replace(OPTIONS, version="0.27"))
    assert sorted(pool.name for pool in found.draft.pools) == pools
    if not mode:
        assert found.draft.tasks["actor.generate"].memory_fraction == 0.75
        assert found.draft.pools[0].gpus == 1
