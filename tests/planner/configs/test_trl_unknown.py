"""Programs of TRL of which a part is not known: what is taken for it is said, and never silent."""

from dataclasses import replace

import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.planner.configs.importing import ImportOptions, imported

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=64.0, environment={})


TRAINED = "GRPOTrainer('Qwen/Qwen2.5-0.5B', args=GRPOConfig('o', max_completion_length=512))\n"


@pytest.fixture
def program(tmp_path):
    """Return a file whose text a test writes."""
    return tmp_path / "own.py"


def test_adapters_that_may_be_merged_or_trained_are_no_silent_full_training(program):
    text = "m = PeftModel.from_pretrained(base, 'sft')\n" + TRAINED
    program.write_text(text, encoding="utf-8")
    found = imported("trl", [str(program)], OPTIONS)
    assert any("merged or trained is not known" in each for each in found.doubts())
    merged = FrozenDict({"adapter.is_trainable": "False"})
    assert not [*imported("trl", [str(program)], replace(OPTIONS, values=merged)).doubts()]
    trained = FrozenDict({"adapter.is_trainable": "True", "lora_r": "32"})
    assert imported("trl", [str(program)], replace(OPTIONS, values=trained)).run.adapter.rank == 32


def test_settings_of_which_none_is_known_are_no_silent_defaults(program):
    text = "args, _ = parser.parse_dict(composed)\nGRPOTrainer('Qwen/Qwen2.5-0.5B', args=args)\n"
    program.write_text(text, encoding="utf-8")
    found = imported("trl", [str(program)], OPTIONS)
    assert any("trainer.args=" in each and "not known" in each for each in found.doubts())
    given = FrozenDict({"num_generations": "4"})
    said = replace(OPTIONS, values=given)
    assert not [*imported("trl", [str(program)], said).doubts()]
