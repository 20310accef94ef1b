"""What an engine's own kernels change of a layer's experts: tokens that they read where they lie, tiles that nobody tuned."""

from dataclasses import replace

from rlplan.models import PRECISIONS, Collective, Elementwise, ModelArchitecture, Operators
from rlplan.sheets import StepCosts
from rlplan.simulator.costs.setting import Setting

# What brings tokens to experts, of the operators of `rlplan/parts/experts.py`.
BRINGS_TOKENS = "dispatch"
WIDE_BYTES = 2


def in_place(
    costs: StepCosts, setting: Setting, model: ModelArchitecture, operators: Operators, tokens: int
) -> tuple[Operators, Setting]:
    """Return a layer's operators, and the setting of its products, as kernels in 16 bits compute experts.

    Ranks that exchange tokens bring them to buffers first, as other formats' kernels do to quantise them.
    """
    sheet, shard = setting.device.sheet, setting.shard
    kernels = costs.experts.get(sheet.architecture)
    exchanged = any(isinstance(each, Collective) and each.group == "ep" for each in operators)
    wide = PRECISIONS[setting.precision].weight_bytes == WIDE_BYTES
    if kernels is None or exchanged or not wide:
        return operators, setting
    brought = tuple(
        each
        for each in operators
        if not (isinstance(each, Elementwise) and each.name == BRINGS_TOKENS)
    )
    experts, width = model.num_experts // shard.ep, -(-model.moe_ffn_size // shard.expert_width)
    widths = costs.tuned_experts.get(sheet.name)
    tuned = widths is not None and width in widths.get(experts, ())
    if tuned or tokens <= experts:
        return brought, setting
    rate = setting.kernels.grouped_compute_rate * kernels.untuned_rate
    return brought, replace(setting, kernels=replace(setting.kernels, grouped_compute_rate=rate))
