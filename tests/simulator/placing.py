"""Placed tasks, transitions and replicas for tests, of what they are made of."""

from dataclasses import replace

from rlplan.algorithms import load_algorithm
from rlplan.evals.settings.serving import device_facts
from rlplan.plan import TaskPlan
from rlplan.simulator.costs.setting import setting_on
from rlplan.simulator.generation.prices import ReplicaSetting
from rlplan.simulator.placed import PlacedTask, PlacedTransition, Site

PPO = {task.name: task for task in load_algorithm("ppo").tasks}


def transition(name, before, after, site, job, facts, *, target=None, same_pool=None):
    """Return a transition of the actor between two layouts, on one site or to another one."""
    same = target is None if same_pool is None else same_pool
    return PlacedTransition(
        name,
        PlacedTask(PPO["actor.update"], before, site, job, facts),
        PlacedTask(PPO["actor.generate"], after, target or site, job, facts),
        same,
    )


def generating(layout, site, job, facts):
    """Return the actor's generation in a layout."""
    return PlacedTask(PPO["actor.generate"], layout, site, job, facts)


def replica_setting(model, sheet, device, *, site=None, precision="bf16", **sizes):
    """Return the setting of a replica that is alone on a node, by its engine's sheet."""
    layout = TaskPlan(pool="", engine=sheet.name, **sizes)
    place = site or Site(device, layout.tp, 8, 1e9)
    setting = setting_on(layout, sheet, device_facts(device), place, precision)
    found = ReplicaSetting(model, sheet, setting)
    return replace(found, gathering_gpus=place.gpus) if sheet.gathers_weights else found
