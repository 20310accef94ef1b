"""What a job generates with that names no engine: what the keys of its framework's newest release mean."""

import pytest

from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.profiles.sheets import load_framework


@pytest.mark.parametrize("name", ["areal", "easyr1", "openrlhf", "prime-rl", "skyrl", "verl"])
def test_a_job_without_an_engine_has_that_which_its_framework_is_read_with(name):
    sheet = load_config_sheet(name)
    setting = sheet.settings["rollout_engine"]
    for trainer in sheet.trainers.values():
        steps = load_framework(trainer.framework)
        usual = steps.newest_engine or steps.engines.generate
        assert usual == setting.values[str(setting.default)]
