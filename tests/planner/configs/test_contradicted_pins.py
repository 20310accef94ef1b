"""Pins of a framework's version beside keys at which that version would stop."""

import pytest

from rlplan.planner.configs.importing import ImportOptions, imported

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=100, environment={"HOME": "~"})
LATER = (
    "--chat_template_kwargs.enable_thinking false --cast_lm_head_to_fp32 true --vllm_mode colocate"
)


@pytest.mark.parametrize(
    ("keys", "pinned", "wanted"),
    [
        (f"{LATER} --importance_sampling_level sequence", "0.18", "1.16"),
        (f"{LATER} --importance_sampling_level sequence", "0.22", "0.22"),  # its grpo.py drops them
        ("--cast_lm_head_to_fp32 true --vllm_mode colocate", "0.18", "0.18"),
        ("--cast_lm_head_to_fp32 true", "0.18", "0.18"),  # it may be of a script's own class
    ],
)
def test_a_pin_whose_version_stops_at_most_of_the_keys_is_not_taken(tmp_path, keys, pinned, wanted):
    (tmp_path / "setup.py").write_text(f'deps = ["trl=={pinned}.0"]\n', encoding="utf-8")
    command = "trl grpo --model_name_or_path Qwen/Qwen2.5-7B-Instruct --use_vllm true"
    (tmp_path / "run.sh").write_text(f"{command} {keys}\n", encoding="utf-8")
    found = imported("trl", [str(tmp_path / "run.sh")], OPTIONS)
    assert found.settings.sheet.version == wanted
    said = f'TRL {wanted}, not by "trl=={pinned}.0"'
    assert any(note.startswith(said) for note in found.notes) == (wanted != pinned)


@pytest.mark.parametrize(("pinned", "wanted"), [("0.18", "0.18"), ("0.20", "1.16")])
def test_keys_of_files_that_a_pinned_version_drops_leave_its_pin(tmp_path, pinned, wanted):
    (tmp_path / "setup.py").write_text(f'deps = ["trl=={pinned}.0"]\n', encoding="utf-8")
    recipe = tmp_path / "grpo.yaml"
    recipe.write_text(
        "model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nuse_vllm: true\ncast_lm_head_to_fp32: true\n"
        "chat_template_kwargs: {enable_thinking: false}\nvllm_importance_sampling_correction: true\n",
        encoding="utf-8",
    )
    (tmp_path / "run.sh").write_text(f"trl grpo --config {recipe}\n", encoding="utf-8")
    found = imported("trl", [str(tmp_path / "run.sh")], OPTIONS)
    assert found.settings.sheet.version == wanted
