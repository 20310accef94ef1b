"""The type of GPUs that a script asks Slurm or a cloud for."""

import pytest

from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.nodes import asked_gpu

ASKED = {
    "#SBATCH --gres=gpu:h200:8": "h200",
    "#SBATCH --gres=gpu:H100": "h100-80gb-sxm",
    "#SBATCH --nodes=2 --gpus-per-node=h100:8": "h100-80gb-sxm",
    "#SBATCH -G l40s:4": "l40s",
    "resources:\n  accelerators: {H100: 8}": "h100-80gb-sxm",
    '@app.function(\n    gpu="L4:3",\n)': "l4",
    "#SBATCH --gres=gpu:a100:4": "a100-80gb-sxm",
    "resources:\n  accelerators: A100:8": "a100-40gb-sxm",
    "resources:\n  accelerators: A100-80GB:8": "a100-80gb-sxm",
    '@app.function(\n    gpu="A100",\n)': "a100-40gb-sxm",
    "resources:\n  accelerators: {A100-80GB: 8, H100: 8}": None,
    "resources:\n  accelerators: [A100-80GB:8, H100:8]": None,
    "#SBATCH --gres=gpu:h100:4,gpu:h200:4": None,
    "#SBATCH --gres=tmpfs:10G,gpu:h200:4": "h200",
    "#SBATCH --gres=gpu:8": None,
    "#SBATCH --gres=gpu:hopper:8": None,
    "# --gres=gpu:h200:8": None,
    "#SBATCH --gres=gpu:h200:8\n#SBATCH --gres=gpu:l40s:8": None,
}


@pytest.mark.parametrize("text", ASKED)
def test_the_type_that_is_asked_for_is_a_sheet_s(tmp_path, text):
    path = tmp_path / "run.sh"
    path.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    found = asked_gpu(path)
    assert (found and found[0]) == ASKED[text]


def test_that_it_is_taken_is_said_first(tmp_path):
    path = tmp_path / "run.sh"
    start = "trl grpo --model_name_or_path Qwen/Qwen3-0.6B --num_processes 1"
    path.write_text(f"#SBATCH --gres=gpu:h200:8\n{start}\n", encoding="utf-8")
    options = ImportOptions(gpu="h200", gpu_by=f"{path}:1", mean_response=90.0, environment={})
    found = imported("trl", [str(path)], options)
    assert found.guesses[0] == f"GPUs are h200, as asked for at {path}:1; --gpu says others"
