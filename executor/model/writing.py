"""Write models as folders that `transformers` and this executor read, with weights drawn from a seed.

They stand for pre-trained ones where there is no network to fetch any.
"""

import importlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from rlplan.executor.model.families import causal_lm_class, family_config
from rlplan.models.model import ModelArchitecture


def write_model(folder: Path, architecture: ModelArchitecture, seed: int) -> None:
    """Write a model's configuration and weights, in bf16 as most are published; nothing where a part of it fails.

    Args:
        folder: Is made; what is there already stays, and nothing is written.
    """
    if folder.exists():
        return
    config = family_config(architecture)
    config.dtype = torch.bfloat16
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = causal_lm_class(config)(config).to(torch.bfloat16)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        draw_no_bars()
        model.save_pretrained(made)
        made.chmod(0o755)  # temporary folders are their owner's alone
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def draw_no_bars() -> None:
    """Keep transformers from drawing progress bars: the terminal is the command's."""
    logging = importlib.import_module("transformers.utils.logging")
    logging.disable_progress_bar()
