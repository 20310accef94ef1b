"""SkyRL, AReaL and prime-rl through the command: imported, written again, and what was written is checked."""

from pathlib import Path

import pytest

from tests.cases import first

GPU = ("--gpu", "h100-80gb-sxm", "--mean-response", "300", "--mean-prompt", "100")
SKYRL = """
uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen2.5-7B-Instruct \\
  trainer.placement.policy_num_gpus_per_node=8 trainer.placement.ref_num_gpus_per_node=8 trainer.train_batch_size=256 \\
  generator.inference_engine.num_engines=4 generator.inference_engine.tensor_parallel_size=2 \\
  generator.inference_engine.gpu_memory_utilization=0.6 generator.n_samples_per_prompt=4 $@
"""
AREAL = """
rollout: {backend: "sglang:d4", max_head_offpolicyness: 2}
gconfig: {n_samples: 4, max_new_tokens: 1024}
actor:
  backend: "fsdp:d4"
  path: Qwen/Qwen2.5-1.5B-Instruct
  mb_spec: {max_tokens_per_mb: 10240}
  kl_ctl: 0.0
train_dataset: {batch_size: 256, max_length: 1024}
"""
PRIME_RL = """
seq_len = 4096
[model]
name = "Qwen/Qwen3-8B"
[deployment]
num_train_gpus = 4
num_infer_gpus = 4
[orchestrator]
batch_size = 256
group_size = 8
"""


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("framework", "text", "suffix", "says"),
    first(
        1,
        [
            ("skyrl", SKYRL, "sh", "generator.inference_engine.num_engines=4"),
            ("areal", AREAL, "yaml", "backend: sglang:d4p1t1"),
            ("prime-rl", PRIME_RL, "toml", "num_infer_gpus = 4"),
        ],
    ),
)
def test_a_configuration_is_imported_written_again_and_checked(
    framework, text, suffix, says, rlplan
):
    run, again = f"run.{suffix}", f"again.{suffix}"
    Path(run).write_text(text)
    made = ("--out", "job.yaml", "--plan", "plan.yaml")
    assert rlplan("import", framework, run, *GPU, *made).code == 0
    written = rlplan("export", "plan.yaml", "--to", framework, "--out", again)
    assert written.code == 0, written.err
    assert says in Path(again).read_text()
    checked = rlplan("check", framework, again, *GPU)
    assert checked.code == 0, checked.out + checked.err
    assert checked.out.splitlines()[0] == f"{again}: runs; memory: fits"
