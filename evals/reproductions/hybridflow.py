"""HybridFlow's evaluation: Sheng et al. 2025, EuroSys, arXiv:2409.19256, figures 9 to 16 and table 2.

A figure that the paper states is taken to hold when the forecast's is within 35 % of it; an order holds
when every point keeps it, or 95 of 100 where so many are compared.
"""

from collections.abc import Sequence

from rlplan.evals.claims import judged
from rlplan.evals.hybridflow.claims import CLAIMS, Points
from rlplan.evals.hybridflow.points import unfinished_points
from rlplan.evals.reproductions import Progress
from rlplan.results.accuracy import Claim, Point, Reproduction

NOTES = (
    (
        "Parallel sizes of the systems are not published. HybridFlow's are those of the project's own search "
        "over all placements (activations recomputed, nothing offloaded), its peers' the best of what "
        "their documentation lets a user set (`planner/systems/baselines/`)."
    ),
    (
        "Constants of engines fitted on rows of these figures: NeMo-Aligner's launch time of a layer, on PPO "
        "with 8 to 32 GPUs. DeepSpeed-Chat's are fitted on OpenRLHF's own benchmark. Transitions and "
        "generation (figures 14 and 15) have constants of their own fitted on part of their rows; "
        "`rlplan accuracy` tells which."
    ),
    (
        "The published series of OpenRLHF equals OpenRLHF's own published seconds to four digits, measured on "
        "A800 with its own prompts; its vLLM gets them without padding, and so does the forecast (163 tokens "
        "on average). All other systems are forecast with prompts of 1,024 tokens."
    ),
    (
        "The paper says that NeMo-Aligner generates without a KV cache. Its published iterations are several "
        "times shorter than the matrix products of that (7B on 8 GPUs: at least 9,000 s at the peak of all 8 "
        "GPUs, published 3,048 s), so it is forecast with one."
    ),
    (
        "NeMo-Aligner's PPO and Safe-RLHF rows for 7B on 64 and 128 GPUs are equal in the figure, and its "
        "throughput a GPU falls by 41 % between 32 and 64 GPUs and not after it, as if it were laid out with "
        "twice the tensor parallelism from there on (with TP 4 PPO would be about 10 % off): the forecast "
        "keeps the faster layout."
    ),
    (
        "DeepSpeed-Chat's ReMax row for 13B on 64 GPUs (810 s an iteration) lies between 1,166 s on 32 and "
        "280 s on 128 GPUs, off any line through the others."
    ),
    (
        "Sub-captions of figures 10 and 11 disagree with their bars: the bars are taken. At 34B on 64 GPUs "
        "figure 12 shows split ahead of colocate where the text says colocate."
    ),
    (
        "Figures 12 and 13 and all 70B points are forecast without published values to hold them against: "
        "rlplan holds none. NeMo-Aligner's 70B is forecast slower than the paper's largest speed-up allows. "
        "Layouts of figure 14 for 34B and 70B are not published and assumed."
    ),
    (
        "Figure 16 has wall seconds of the whole search, the best plan of every placement included, on the "
        "machine that made this page, whatever else it was doing; the published ones are of Algorithm 1 on "
        "another machine."
    ),
)


def reproduce(progress: Progress | None = None) -> Reproduction:
    """Return every point forecast, and every claim of the paper marked.

    Args:
        progress: Called with (done, total, point) before each.
    """
    todo = list(unfinished_points())
    points = []
    for done, each in enumerate(todo):
        if progress:
            progress(
                done, len(todo), f"{each.point.figure}, {each.point.panel}, {each.point.gpus} GPUs"
            )
        points.append(each.finished())
    if progress:
        progress(len(todo), len(todo), "claims")
    return Reproduction(
        name="hybridflow",
        title="HybridFlow's evaluation, forecast",
        source="Sheng et al. 2025, HybridFlow: A Flexible and Efficient RLHF Framework, EuroSys 2025, "
        "arXiv:2409.19256",
        notes=NOTES,
        points=tuple(points),
        claims=claims_of(points),
    )


def claims_of(points: Sequence[Point]) -> tuple[Claim, ...]:
    """Return every claim, marked."""
    return tuple(judged(CLAIMS, Points(points)))
