"""Workers that hold a vLLM engine for one plan after another."""

import gc
import sys

from rlplan.executor.workers.protocols import registered
from tests.executor.harness import ReusedWorker


class VllmWorker(ReusedWorker):
    """Forget the engine before, and the process groups that vLLM keeps for a whole process."""

    @registered("all-to-all")
    def join(self, place):
        if "vllm" in sys.modules:
            from vllm.distributed.parallel_state import (
                destroy_distributed_environment,
                destroy_model_parallel,
            )

            # An engine ends the process group when it is collected: now, not in the next plan.
            self._stages = self._models = None
            gc.unfreeze()
            gc.collect()
            destroy_model_parallel()
            destroy_distributed_environment()
        super().join(place)
