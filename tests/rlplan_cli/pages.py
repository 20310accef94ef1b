"""A served page in this process: lanes that do their work in threads, a client with the token, and small jobs."""

import asyncio
import threading
from contextlib import contextmanager

import uvicorn

from rlplan_cli.serve.app import Page, bound, make_app
from rlplan_cli.serve.lanes import Lane
from rlplan_cli.serve.work import done

TOKEN = "a-token-of-tests"
SMALL = {
    "model": "smollm2-135m",
    "gpu": "l4",
    "gpus": 2,
    "prompts": 16,
    "samples_per_prompt": 4,
    "prompt_tokens": 32,
    "response_tokens": 64,
    "mean_response_tokens": 24,
}
# Small enough to be forecast in a tenth of a second.
VERL_WORDS = (
    "algorithm.adv_estimator=grpo trainer.n_gpus_per_node=2 trainer.nnodes=1 "
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct actor_rollout_ref.rollout.name=vllm "
    "actor_rollout_ref.rollout.n=4 data.train_batch_size=32 actor_rollout_ref.actor.ppo_mini_batch_size=32 "
    "data.max_prompt_length=128 data.max_response_length=256 actor_rollout_ref.actor.use_dynamic_bsz=True "
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192 actor_rollout_ref.rollout.tensor_model_parallel_size=1 "
    "actor_rollout_ref.actor.use_kl_loss=True"
)
SCRIPT = "#!/bin/bash\npython3 -m verl.trainer.main_ppo \\\n    " + " \\\n    ".join(
    VERL_WORDS.split()
)


class ThreadLane(Lane):
    """Do the work of a lane in this process."""

    def _talk(self, request, progress):
        return done(request.work, request.asked, progress or (lambda *_: None))

    def stop(self):
        """Leave it to the thread to end."""


def page_of_threads():
    page = Page(warms=False)
    page.quick, page.whole, page.long = (
        ThreadLane(name) for name in ("quick", "answers", "search")
    )
    return page


@contextmanager
def served(page):
    """Yield the link of a page that is served on this machine."""
    sock = bound(0)
    config = uvicorn.Config(make_app(TOKEN, page), log_level="error", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([sock])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/{TOKEN}/"
    finally:
        server.should_exit = True
        thread.join(10)
        sock.close()
