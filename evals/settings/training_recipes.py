"""What published recipes set beside the sizes that tables print: how tokens reach experts, graphs, what is recomputed.

`training_recipes.csv` holds it of NVIDIA's Megatron-Bridge by release (scripts/performance/configs at its tags v0.3.0 to
v0.5.1, src/megatron/bridge/perf_recipes at v0.6.0, which containers 26.02, 26.04, 26.06 and 26.08 bring) and of NeMo
AutoModel (examples/llm_benchmark). All of them balance experts by force: Megatron-Core draws random logits
(--moe-router-force-load-balancing), AutoModel deals experts out in turn (fake_balanced_gate: FakeBalancedGate of its
components/moe/layers.py at 36044ad), so that those of a token lie on one or two ranks.
"""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rlplan.plan import Recompute
from rlplan.trainers import TrainerOptions

FILE = Path(__file__).with_suffix(".csv")
AUTOMODEL = "automodel"
SIZES = ("micro_batch", "tp", "pp", "cp", "vp", "ep")
# Modules that are computed again: whole layers, a layer's experts, memory-bound kernels. Others (up-projections of latent
# attention, dense networks of a few layers) are left out, less than a hundredth of a pass.
WHOLE_LAYER = "full"
EXPERTS = "moe"
# Whose recipes exchange beside products wherever ranks share them, but in nvfp4 (comm_overlap.tp_comm_overlap of them,
# tags v0.3.0 to v0.6.0). Stages hand activations on beside computing in all of Megatron-Bridge's recipes with several
# chunks of layers (training/comm_overlap.py).
OVERLAP_PRODUCTS = ("llama-3-70b", "llama-3.1-405b")
MEMORY_BOUND = frozenset({"layernorm", "moe_act", "core_attn"})

Recipe = Mapping[str, str]


@cache
def recipes() -> tuple[Recipe, ...]:
    """Return all recipes, in the order of the file."""
    with FILE.open(encoding="utf-8", newline="") as lines:
        return tuple(csv.DictReader(lines))


def recipe_of(
    release: str, model: str, gpu: str, precision: str, sizes: Mapping[str, str]
) -> Recipe | None:
    """Return the recipe of a run: of its release, model and device, and most alike in its sizes.

    A precision without a recipe of its own takes those of the others; a container's release that has none, those of the
    last one before it, or of the first; and a model without one in its release that of the next release that has one.

    Args:
        release: Of containers, such as 26.04, or `automodel`; empty has no recipe.
        sizes: As a table prints them, by `SIZES`.
    """
    known = sorted({each["release"] for each in recipes()} - {AUTOMODEL})
    if release and release not in (*known, AUTOMODEL):
        release = max((each for each in known if each < release), default=known[0])
    own = [each for each in recipes() if (each["model"], each["gpu"]) == (model, gpu)]
    later = [each for each in known if release and each >= release != AUTOMODEL]
    found = ([each for each in own if each["release"] == one] for one in (release, *later))
    alike = next(filter(None, found), [])
    exact = [each for each in alike if each["precision"] == precision]
    return max(
        exact or alike,
        key=lambda each: sum((each[name] or "1") == (sizes[name] or "1") for name in SIZES),
        default=None,
    )


def options_of(recipe: Recipe | None) -> TrainerOptions:
    """Return how a recipe's trainer brings tokens to experts, which are balanced by force."""
    if recipe is None:
        return TrainerOptions(popularity_spread=0.0)
    return TrainerOptions(
        dispatcher=recipe["dispatcher"],
        overlaps_exchange=recipe["overlap"] == "true",
        overlaps_products=recipe["model"] in OVERLAP_PRODUCTS and recipe["precision"] != "nvfp4",
        overlaps_sends=recipe["release"] != AUTOMODEL,
        popularity_spread=0.0,
        experts_in_turn=recipe["release"] == AUTOMODEL,
        graphs=tuple(recipe["graphs"].split()),  # type: ignore[arg-type]
    )


def recompute_of(recipe: Recipe | None) -> Recompute:
    """Return what a recipe computes again in the backward pass."""
    modules = recipe["recompute"].split() if recipe is not None else []
    if WHOLE_LAYER in modules:
        return "full"
    if EXPERTS in modules:
        return "experts"
    return "selective" if MEMORY_BOUND & set(modules) else "none"
