"""Low-rank adapters: what is trained in place of a model's own weights."""

from dataclasses import dataclass
from typing import Literal

from rlplan.files.limits import AtLeastOne, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Say that a model is trained by adapters (LoRA: Hu et al. 2021, arXiv:2106.09685, section 4.1).

    Its own weights are frozen: kept in the job's format, without gradients and optimizer states. A linear
    layer of k inputs and n outputs gets two matrices, k x r and r x n, beside it.

    Attributes:
        rank: The r of both matrices.
        alpha: What they add is multiplied by alpha / rank; None takes the rank.
        targets: Which linear layers have them: all of a block (routers, embedding and head aside), or
            those of its attention or its feed-forward part.
        shares_reference: Whether the frozen weights, adapters off, are the reference model, so that no
            second copy of it is kept (the actor's).
        sync: What generation gets after an update (the actor's): the `adapter`, which its engine computes
            beside the weights that it keeps, or whole weights with the adapters `merged` into them.
    """

    rank: AtLeastOne = 16
    alpha: Positive | None = None
    targets: Literal["all-linear", "attention", "feed-forward"] = "all-linear"
    shares_reference: bool = True
    sync: Literal["adapter", "merged"] = "adapter"
