"""verl's own functions, executed as they are, without what the rest of verl imports.

Packages of verl are entered without their `__init__`, which would start its distributed parts; names of
tensordict, transformers and verl's configurations that only annotations and `isinstance` use are empty classes.
"""

import importlib
import importlib.util
import sys
import types
from pathlib import Path

EMPTY = {
    "tensordict": ("TensorDict",),
    "transformers": ("PreTrainedTokenizer",),
    "verl.protocol": ("DataProto",),
    "verl.trainer.config": ("AlgoConfig",),
    "verl.trainer.config.algorithm": ("RolloutCorrectionConfig",),
    "verl.workers.config": ("ActorConfig",),
    "verl.workers.config.actor": ("PolicyLossConfig",),
}
PACKAGES = ("verl", "verl.trainer", "verl.trainer.ppo", "verl.utils", "verl.workers")


def load(*names):
    """Return modules of verl by their names."""
    found = importlib.util.find_spec("verl")
    assert found is not None
    root = Path(found.origin).parent
    before = dict(sys.modules)
    for name in PACKAGES:
        package(name, str(root.joinpath(*name.split(".")[1:])))
    for name, classes in EMPTY.items():
        vars(package(name)).update({each: type(each, (), {}) for each in classes})
    grouping = importlib.import_module("verl.utils.groupwise")
    for name in ("as_torch_index", "group_mean_std"):
        setattr(sys.modules["verl.utils"], name, getattr(grouping, name))
    modules = [importlib.import_module(name) for name in names]
    for name in EMPTY:
        if not name.startswith("verl"):  # others may want the real ones
            sys.modules.pop(name)
            sys.modules.update({name: before[name]} if name in before else {})
    return modules


def package(name, folder=None):
    """Put an empty package into `sys.modules`, with a folder in which its modules are looked for."""
    made = types.ModuleType(name)
    made.__path__ = [folder] if folder else []
    sys.modules[name] = made
    return made


core_algos, torch_functional, rollout_correction = load(
    "verl.trainer.ppo.core_algos",
    "verl.utils.torch_functional",
    "verl.trainer.ppo.rollout_corr_helper",
)


class ActorConfig(sys.modules["verl.workers.config"].ActorConfig):
    """Hold what verl's policy losses read of an actor's configuration."""

    def __init__(self, low=0.2, high=None, dual=1e9, **global_batch_info):
        self.clip_ratio, self.clip_ratio_low, self.clip_ratio_high = low, None, high
        self.clip_ratio_c, self.global_batch_info = dual, global_batch_info

    def get(self, name, default):
        """Return a setting."""
        return getattr(self, name, default)
