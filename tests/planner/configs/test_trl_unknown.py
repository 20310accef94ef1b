"""Programs of TRL of which a part is not known: what is taken for it is said, and never silent."""

from dataclasses import replace

import pytest

from rlplan.errors import MissingValuesError
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


def test_what_a_mapping_of_settings_may_hold_of_the_work_is_asked_for_where_it_is_not_known(
    program,
):
    text = (
        "GRPOTrainer('Qwen/Qwen3-8B', args=GRPOConfig(gradient_accumulation_steps=2, **kwargs))\n"
    )
    program.write_text(text, encoding="utf-8")
    with pytest.raises(MissingValuesError, match=r"\*\*kwargs` \(line 1\)") as caught:
        imported("trl", [str(program)], OPTIONS)
    asked = {
        "per_device_train_batch_size": "8",
        "num_generations": "8",
        "max_completion_length": "512",
    }
    assert [each.key for each in caught.value.missing] == [*asked]
    found = imported("trl", [str(program)], replace(OPTIONS, values=FrozenDict(asked)))
    assert found.keys.changes_work == {"**kwargs": "what it holds is not known"}
    assert found.job.workload.samples_per_prompt == 8


def test_settings_of_which_none_is_known_are_no_silent_defaults(program):
    text = "args, _ = parser.parse_dict(composed)\nGRPOTrainer('Qwen/Qwen2.5-0.5B', args=args)\n"
    program.write_text(text, encoding="utf-8")
    found = imported("trl", [str(program)], OPTIONS)
    assert any("trainer.args=" in each and "not known" in each for each in found.doubts())
    given = FrozenDict({"num_generations": "4"})
    said = replace(OPTIONS, values=given)
    assert not [*imported("trl", [str(program)], said).doubts()]


def test_scripts_beside_a_program_that_start_it_are_named_where_it_leaves_values_open(program):
    text = "args = parser.parse_args()\nGRPOTrainer(args.model, args=GRPOConfig(num_generations=args.n))\n"
    program.write_text(text, encoding="utf-8")
    with pytest.raises(MissingValuesError) as untold:
        imported("trl", [str(program)], OPTIONS)
    assert not untold.value.hint
    script, other = program.parent / "run.sh", program.parent / "eval.sh"
    start = f"accelerate launch --num_processes 2 {program.name} --model Qwen/Qwen2.5-0.5B --n 4\n"
    script.write_text(start, encoding="utf-8")
    other.write_text(
        f"# {program.name} comes first\npython test_{program.name}\n", encoding="utf-8"
    )
    with pytest.raises(
        MissingValuesError, match=r"or read \S*run\.sh in its place, which starts it"
    ):
        imported("trl", [str(program)], OPTIONS)
    found = imported("trl", [str(script)], OPTIONS)
    assert (found.job.models["actor"], found.job.workload.samples_per_prompt) == ("qwen2.5-0.5b", 4)
