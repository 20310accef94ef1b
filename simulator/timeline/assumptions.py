"""What a forecast rests on that the job does not say: figures of sheets, spreads of lengths, times of rules."""

from collections.abc import Iterator
from dataclasses import replace

from profiles.analytic.efficiencies import load_host_costs
from profiles.facts import Facts
from profiles.jobs.nodes import taken_from_sheet
from rlplan.calibration import WORK_KINDS, Calibration, Factor
from rlplan.job import Job, NodeGroup
from rlplan.units import show_seconds
from rlplan.workload.lengths import Lognormal
from simulator.costs.calibrated import uncalibrated_spread


def assumptions_of(job: Job, facts: Facts) -> tuple[str, ...]:
    """Return one sentence for each group of nodes, borrowed architecture, guessed spread or rule and site's factor."""
    found = (
        *_of_nodes(job, facts),
        *_of_kernels(job, facts),
        *_of_lengths(job),
        *_of_rules(job, facts),
        *_of_environments(job),
        *_of_site(facts.calibration, job.framework),
        *_of_framework(job, facts),
    )
    return tuple(dict.fromkeys(found))


def _of_site(calibration: Calibration, framework: str) -> Iterator[str]:
    """Yield what the site's factors are, those of one value together."""
    factors: dict[Factor, list[str]] = {}
    for name, factor in calibration.named():
        factors.setdefault(replace(factor, tied_to=()), []).append(name)
    site = f"site {calibration.site}".strip()
    for factor, names in factors.items():
        rows = "1 measured time" if factor.rows == 1 else f"{factor.rows} measured times"
        yield f"{site}: {', '.join(names)} x {factor.value:.2f}, fitted on {rows}"
    if calibration.framework not in ("", framework):
        yield f"{site}: fitted on steps of {calibration.framework}, not of {framework}"


def _of_framework(job: Job, facts: Facts) -> Iterator[str]:
    """Yield how well a framework's stages are known that no factor of the site corrects."""
    framework = facts.framework(job.framework)
    spreads = {
        kind: uncalibrated_spread(framework, kind)
        for kind in WORK_KINDS
        if facts.calibration.factor(kind) is None
    }
    if spreads and not framework.runs:
        known = dict.fromkeys(f"{spread:.0%}" for spread in sorted(spreads.values()))
        yield (
            f"{framework.title}: {', '.join(spreads)} not calibrated at this site, known to within "
            f"{' to '.join((*known,)[:: max(1, len(known) - 1)])} (one sigma): see rlplan calibrate"
        )


def _of_nodes(job: Job, facts: Facts) -> Iterator[str]:
    for group in job.cluster:
        found = ", ".join(_figures(job, group, facts))
        if found:
            yield f"{group.gpus_per_node} x {group.gpu} a node, from its sheet: {found}"


def _figures(job: Job, group: NodeGroup, facts: Facts) -> Iterator[str]:
    """Yield the figures of a group that its device's sheet gives and that matter to it."""
    sheet, framework = facts.device(group.gpu).sheet, facts.framework(job.framework)
    kept = framework.keeps_domains
    taken = taken_from_sheet(group, sheet, keeps_domains=kept)
    domain = sheet.nvlink_domain_gpus if "nvlink_domain_gpus" in taken else None
    if domain and group.linked_gpus > group.gpus_per_node:
        yield f"NVLink over {group.linked_gpus} GPUs"
    elif domain and group.nodes > 1:
        yield (
            f"NVLink within nodes ({framework.title} places ranks without regard to domains of "
            f"{domain} GPUs; nvlink_domain_gpus says otherwise)"
        )
    if "inter_node_gbps" in taken and group.nodes > 1:
        yield f"{group.inter_node_gbps:,g} Gbit/s a node"
    if "cpu_cores" in taken and (job.rewards is not None or job.environments):
        yield f"{group.cpu_cores} CPU cores a node"
    if group.usd_per_gpu_hour is None:
        yield f"{sheet.usd_per_hour:g} USD per GPU and hour"


def _of_kernels(job: Job, facts: Facts) -> Iterator[str]:
    for group in job.cluster:
        device = facts.device(group.gpu)
        if device.borrowed_kernels is not None:
            yield (
                f"no operator of {device.sheet.architecture} ({group.gpu}) was measured: the efficiencies "
                f"of {device.borrowed_kernels} stand in"
            )


def _of_lengths(job: Job) -> Iterator[str]:
    work = job.workload
    for what, lengths in (("prompt", work.prompt_tokens), ("response", work.response_tokens)):
        if isinstance(lengths, Lognormal) and lengths.assumed is not None:
            yield f"{what} lengths: {lengths.assumed}"


def _of_rules(job: Job, facts: Facts) -> Iterator[str]:
    rewards, device = job.rewards, facts.device(job.cluster[0].gpu)
    names = (rewards.function, rewards.cost_function) if rewards is not None else ()
    seconds = load_host_costs().rule_call_seconds.value
    for name in names:
        if name is not None and device.guesses_rule(name):
            yield (
                f"rule {name} takes {show_seconds(seconds)} a sample: give "
                f"rewards.function_seconds_per_sample, or run `rlplan profile` for this job"
            )


def _of_environments(job: Job) -> Iterator[str]:
    """Yield how many steps of environments run at a time that the job does not say it of."""
    cores = job.host_cores or 0
    for each in job.environments:
        if each.workers is None and each.cpu_cores and each.inference == "remote":
            steps = int(cores / each.cpu_cores)
            yield (
                f"environment {each.name}: up to {steps:,} steps at a time, {each.cpu_cores:g} of all nodes' "
                f"{cores:,} cores each"
            )
