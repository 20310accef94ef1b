"""Releases between the versions that are known: each is read as the one before it."""

from pathlib import Path

import pytest

from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.planner.configs.reading.versions import _left_by_requirements, set_version


@pytest.mark.parametrize(
    ("framework", "limits", "newest"),
    [
        ("trl", "<=1.0", "1.0"),
        ("trl", "<1.0", "0.29"),
        ("openrlhf", ">=0.8.4,<0.8.7", "0.8.3"),  # its releases up to 0.8.7 are read as 0.8.3
        ("openrlhf", "~=0.9.3", "0.9.10"),
    ],
)
def test_limits_of_requirements_leave_the_releases_that_a_known_version_stands_for(
    tmp_path, framework, limits, newest
):
    (tmp_path / "requirements.txt").write_text(f"{framework}{limits}\n", encoding="utf-8")
    (tmp_path / "run.sh").touch()
    sheet = load_config_sheet(framework)
    assert _left_by_requirements(sheet, (tmp_path / "run.sh",))[0][-1] == newest


@pytest.mark.parametrize(
    ("framework", "word", "wanted"),
    [("openrlhf", "0.8.5", "0.8.3"), ("trl", "0.18.1", "0.18"), ("roll", "0.2.0", "0.1.3")],
)
def test_an_option_may_say_a_release_that_is_read_as_the_one_before_it(framework, word, wanted):
    settings = Settings(load_config_sheet(framework), {}, "run.sh")
    set_version(settings, word, Path("run.sh"))
    assert settings.sheet.version == wanted
    assert settings.version_reason == f"as --framework-version {word} says"


@pytest.mark.parametrize(
    "name", ["requirements.txt", "uv.lock", "pyproject.toml", "setup.py", "VERSION"]
)
def test_a_file_beside_a_script_that_cannot_be_read_refuses_nothing(tmp_path, name):
    script = tmp_path / "run.sh"
    script.write_text("trl grpo --model_name_or_path Qwen/Qwen3-8B\n", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "trl"\ndynamic = ["version"]\n', encoding="utf-8"
    )
    (tmp_path / name).write_bytes(b"# caf\xe9\ntrl<0.19\n")
    settings = Settings(load_config_sheet("trl"), {}, str(script))
    set_version(settings, None, script)
    assert "nothing says which" in settings.version_reason
