"""Facts about devices, engines and operations: what the simulator asks, answered from one place.

A measured point answers first, then what lies between measured points, then the roofline over the
device's sheet. Every answer names its source; nothing that is unknown costs zero.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from rlplan.calibration import (
    CALIBRATION_VERSION,
    NO_CALIBRATION,
    NO_FACTOR,
    Calibration,
    Factor,
    Link,
)
from rlplan.errors import FileError, UnknownNameError, nearest_name
from rlplan.estimate import ZERO, Estimate, Source
from rlplan.files.decoding import check_version, decode, load_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.framework import FrameworkSheet
from rlplan.job import Job
from rlplan.models import PRECISIONS, Attention, CollectiveKind, Precision
from rlplan.plan import HOST_DEVICE
from rlplan.probing import ModelPass
from rlplan.profiles.analytic.efficiencies import unmeasured_call
from rlplan.profiles.analytic.roofline import CopyDirection, Roofline
from rlplan.profiles.catalog import load_engine
from rlplan.profiles.kernels.kernel_time import RowKind, row_bytes
from rlplan.profiles.sheets import (
    load_framework,
    load_network,
    load_transition,
    sheet_files,
    sheet_of,
)
from rlplan.profiles.tables.measurements import Measurements
from rlplan.profiles.tables.remembered import forget_answers, remembered
from rlplan.profiles.tables.table import QUEUE_CALL, Profile, read_profiles
from rlplan.sheets import DeviceSheet, EngineSheet
from rlplan.weight_syncs import TransitionSheet

# The label of facts without a profile.
DATASHEET: Final = "datasheet"


class DeviceFacts:
    """Answer what operations take on one device: each look-up by its points, else by the roofline.

    Args:
        profile: Measured points of this device, if there are any.
        rule_seconds: What one call of a reward rule takes, when the profile does not know it.
        roofline: Answers where nothing was measured; None takes the sheet's.
        links: Factors of a site on collectives, by the links that they are limited by.
    """

    def __init__(
        self,
        sheet: DeviceSheet,
        profile: Profile | None = None,
        *,
        rule_seconds: float | None = None,
        roofline: Roofline | None = None,
        links: FrozenDict[Link, Factor] = FrozenDict(),
    ) -> None:
        self.sheet = sheet
        self.profile = profile
        self._rule_seconds = rule_seconds
        self._given_roofline = roofline
        self._roofline = roofline or Roofline(sheet)
        self._links = links
        self._points = Measurements(profile, self._roofline)

    def with_slower_host(self, factor: float) -> "DeviceFacts":
        """Return the same device on a host that takes so many times as long to dispatch, which no roofline is about."""
        sheet = replace(self.sheet, host_factor=self.sheet.host_times * factor)
        return self._like_this(sheet, self._links)

    @property
    def content(self) -> Hashable:
        """Return what the answers depend on: facts of equal content answer alike.

        Profiles and rooflines that were handed over count by identity, so whoever keeps this keeps the facts too.
        """
        if type(self) is not DeviceFacts:  # which may answer otherwise
            return id(self)
        given = id(self.profile), id(self._given_roofline)
        return self.sheet, self._rule_seconds, self._links, given

    def with_memory(self, num_bytes: int) -> "DeviceFacts":
        """Return the facts of the same device with another memory."""
        return self._like_this(replace(self.sheet, memory_bytes=num_bytes), self._links)

    def with_links(self, links: FrozenDict[Link, Factor]) -> "DeviceFacts":
        """Return the facts of the same device with a site's factors on its links."""
        return self if links == self._links else self._like_this(self.sheet, links)

    def _like_this(self, sheet: DeviceSheet, links: FrozenDict[Link, Factor]) -> "DeviceFacts":
        return DeviceFacts(
            sheet,
            self.profile,
            rule_seconds=self._rule_seconds,
            roofline=self._roofline,
            links=links,
        )

    @property
    def context_bytes(self) -> int:
        """Return the bytes of a device that a worker holds beside models: measured, or the sheet's."""
        measured_bytes = self.profile.header.context_bytes if self.profile is not None else 0
        return measured_bytes or self.sheet.reserved_bytes

    @property
    def measured_by_node(self) -> bool:
        """Tell whether whole passes were measured on one node of a cluster, and links between nodes apart."""
        return self.profile is not None and bool(self.profile.header.nodes)

    @property
    def shared_cores(self) -> float:
        """Return the host's cores where devices are cores of it, as far as a profile says; else infinite."""
        if self.sheet.kind != "cpu" or self.profile is None:
            return math.inf
        return float(self.profile.header.machine.get("cores", math.inf))

    @remembered
    def gemm(self, m: int, k: int, n: int, precision: Precision) -> Estimate:
        """Return the seconds of an m x k times k x n matrix product."""
        scatter = self._points.gemms(precision)
        return scatter.at((m, k, n)) if scatter else self._roofline.gemm(m, k, n, precision)

    @remembered
    def grouped_gemm(
        self, m: int, k: int, n: int, count: int, precision: Precision, rate: float = 1.0
    ) -> Estimate:
        """Return the seconds of `count` products of m x k times k x n matrices, in one kernel if there is one.

        Where products of the precision were measured, or the device has no such kernel, each takes its own time.
        """
        if count > 1 and not self._points.gemms(precision):
            together = self._roofline.grouped_gemm(m, k, n, count, precision, rate)
            if together is not None:
                return together
        return self.gemm(m, k, n, precision) * count

    @remembered
    def attention(
        self,
        shape: Attention,
        precision: Precision,
        *,
        backward: bool = False,
        paged: bool = False,
        table_tokens: int = 0,
    ) -> Estimate:
        """Return the seconds of the attention of one layer, without its projections: see `Roofline.attention`."""
        heads = (shape.q_heads, shape.kv_heads, shape.head_dim)
        scatter = self._points.attentions(heads, precision, backward)
        if scatter:
            return scatter.at((shape.batch, shape.query_tokens, shape.cached_tokens))
        return self._roofline.attention(
            shape, precision, backward=backward, paged=paged, table_tokens=table_tokens
        )

    def measures_attention(self, shape: Attention, precision: Precision, *, backward: bool) -> bool:
        """Tell whether attention of such heads was measured, so that its seconds are those of its lengths."""
        heads = (shape.q_heads, shape.kv_heads, shape.head_dim)
        return bool(self._points.attentions(heads, precision, backward))

    @remembered
    def memory_bound(self, num_bytes: float, kernels: float = 1) -> Estimate:
        """Return the seconds of norms, activations and the like, by the bytes that they move.

        Args:
            num_bytes: Read and written, by all `kernels` together.
        """
        estimate = self._roofline.memory_bound(num_bytes, kernels)
        ratio = self._points.memory_ratio
        if ratio is None:
            return estimate
        seconds = estimate.seconds * ratio.seconds
        return Estimate(seconds, estimate.seconds * ratio.spread_seconds, Source.FITTED)

    @remembered
    def rowwise(
        self, kind: RowKind, rows: int, width: int, precision: Precision, second_width: int = 0
    ) -> Estimate:
        """Return the seconds of a kernel that works row by row, as inference engines have them.

        Args:
            kind: `norm`, `rope`, `activation` (gate times up), `residual` or `embedding`.
            rows: Tokens.
            width: Values of a row that are written.
            second_width: Values of a second tensor's row: the keys of a rotation.
        """
        if self._points.memory_ratio is None:
            return self._roofline.rowwise(kind, rows, width, precision, second_width)
        value_bytes = PRECISIONS[precision].weight_bytes
        return self.memory_bound(row_bytes(kind, rows, width + second_width, value_bytes))

    @remembered
    def optimizer_step(self, parameters: int, precision: Precision) -> Estimate:
        """Return the seconds of one optimizer step over `parameters` on this device."""
        line = self._points.line("optimizer", (precision,))
        return line.at(parameters) if line else self._roofline.optimizer_step(parameters, precision)

    @remembered
    def copy(self, num_bytes: float, direction: CopyDirection) -> Estimate:
        """Return the seconds of a copy between host and device, or inside the device."""
        line = self._points.line("copy", (direction,))
        return line.at(num_bytes) if line else self._roofline.copy(num_bytes, direction)

    @remembered
    def call(self, num_bytes: float = 0, kind: str = "actor_call") -> Estimate:
        """Return the seconds of a call to another process that passes `num_bytes`.

        Args:
            kind: `actor_call`, `queue_call`, `object_fetch`, `process_start`, or `rule:<name>` for one call of a
                reward rule.

        Raises:
            MissingFactError: There is no such kind.
        """
        line = self._points.line("call", (kind,))
        if line is not None:
            return line.at(num_bytes)
        if kind == QUEUE_CALL:  # at most what one to a worker takes, where nobody measured it
            return self.call(num_bytes)
        return unmeasured_call(num_bytes, kind, self._rule_seconds)

    def guesses_rule(self, name: str) -> bool:
        """Tell whether a reward rule's time was neither measured nor given in the job."""
        return self._rule_seconds is None and self._points.line("call", (f"rule:{name}",)) is None

    @property
    def borrowed_kernels(self) -> str | None:
        """Return the architecture whose kernels stand for this device's, if no profile measured it."""
        shares = self._roofline.shares
        borrowed = shares.kernels != shares.architecture and self.profile is None
        return shares.kernels if borrowed else None

    @remembered
    def collective(
        self,
        kind: CollectiveKind,
        num_bytes: float,
        ranks: int,
        *,
        ranks_per_node: int,
        inter_node_bytes_per_second: float,
        network: str | None = None,
    ) -> Estimate:
        """Return the seconds of a collective; ranks are never extrapolated from other rank counts.

        Args:
            num_bytes: Of the full tensor.
            inter_node_bytes_per_second: Each GPU's share of its node's network cards.
            network: Kind of network where it has a sheet.
        """
        if ranks <= 1:
            return ZERO
        per_node = min(ranks_per_node, ranks)
        if kind == "all_to_all" and per_node == ranks:
            kind = "all_gather"  # from each rank as many bytes, and the one that profiles measure
        factor = self.link_factor("intra-node" if per_node == ranks else "inter-node")
        line = self._points.line("collective", (kind, ranks, per_node))
        if line is not None:
            return line.at(num_bytes) * factor
        estimate = self._roofline.collective(
            kind,
            num_bytes,
            ranks,
            ranks_per_node=per_node,
            inter_node_bytes_per_second=inter_node_bytes_per_second,
            network=load_network(network) if network else None,
        )
        return estimate * factor

    def link_factor(self, link: Link) -> float:
        """Return a site's factor on exchanges that are limited by a link; 1 where it was not calibrated."""
        return self._links.get(link, NO_FACTOR).value

    @remembered
    def model_pass(self, model_pass: ModelPass) -> Estimate | None:
        """Return the seconds of a whole pass; None when its model and layout were not measured."""
        return self._points.passes.at(model_pass)


class Facts:
    """Answer for all devices of a job's cluster, and for engines.

    Attributes:
        label: What the answers rest on, for reports.
        calibration: What work takes at a site beside what the answers say.
    """

    def __init__(
        self,
        devices: Mapping[str, DeviceFacts],
        label: str,
        calibration: Calibration = NO_CALIBRATION,
    ) -> None:
        assert devices
        self._devices = dict(devices)
        self._slower: dict[float, Facts] = {}
        self.label = label
        self.calibration = calibration

    def with_slower_hosts(self, factor: float) -> "Facts":
        """Return the same facts on hosts that take so many times as long to dispatch; remembered."""
        if factor not in self._slower:
            slower = copy(self)
            devices = {name: each.with_slower_host(factor) for name, each in self._devices.items()}
            vars(slower).update(_devices=devices, _slower={})
            self._slower[factor] = slower
        return self._slower[factor]

    @property
    def content(self) -> Hashable:
        """Return what the answers depend on, as `DeviceFacts.content` has it."""
        if type(self) is not Facts:
            return id(self)
        devices = tuple((name, each.content) for name, each in self._devices.items())
        return devices, self.label, self.calibration

    def forget(self) -> None:
        """Forget what was asked, and what others worked out from the answers: all of it is found again."""
        for each in self._devices.values():
            forget_answers(each)
        for slower in self._slower.values():
            slower.forget()
        self._slower.clear()

    def device(self, name: str) -> DeviceFacts:
        """Return the facts of a device of the cluster.

        `host`, the pool of reward workers, answers as the profiled device, whose host was measured
        with it, or as the cluster's first.

        Raises:
            UnknownNameError: The cluster has no such device.
        """
        if name in self._devices:
            return self._devices[name]
        if name != HOST_DEVICE:
            raise UnknownNameError("device", name, self._devices)
        every = list(self._devices.values())
        return next((each for each in every if each.profile is not None), every[0])

    @property
    def loop_flops_per_second(self) -> float | None:
        """Return what a profiled device did in the fixed loop; None without a profile that says so."""
        profiles = (each.profile for each in self._devices.values() if each.profile is not None)
        rates = (rate for each in profiles for rate in each.header.loop_flops_per_second)
        return median(list(rates) or [0.0]) or None

    def with_memory(self, factor: float) -> "Facts":
        """Return these facts as if every device had so many times its memory."""
        devices = {
            name: each.with_memory(round(each.sheet.memory_bytes * factor))
            for name, each in self._devices.items()
        }
        return Facts(devices, self.label, self.calibration)

    def with_calibration(self, calibration: Calibration) -> "Facts":
        """Return these facts with the factors of a site."""
        devices = {name: each.with_links(calibration.links) for name, each in self._devices.items()}
        return Facts(devices, self.label, calibration)

    def engine(self, name: str) -> EngineSheet:
        """Return the sheet of a training or generation engine.

        Raises:
            UnknownNameError: There is no such engine.
        """
        return load_engine(name)

    def framework(self, name: str) -> FrameworkSheet:
        """Return the sheet of a framework.

        Raises:
            UnknownNameError: There is no such framework.
        """
        return load_framework(name)

    def transition(self, name: str, device: str) -> TransitionSheet:
        """Return what software adds to a transition on a device; nothing where no sheet says it."""
        if self.device(device).sheet.kind == "cpu" or name not in sheet_files("transitions"):
            return NO_SOFTWARE
        return load_transition(name)


NO_SOFTWARE = TransitionSheet(name="none", sources=FrozenDict())


def load_facts(job: Job, profile: Path | None = None, site: Path | None = None) -> Facts:
    """Return the facts about a job's cluster, from its device sheets, a profile and a site, if given.

    Args:
        site: Factors of `rlplan calibrate`.

    Raises:
        FileError: The profile is broken, or of no device that the cluster has; or the site's
            file is broken, or its factors correct forecasts that rest on something else.
        UnknownNameError: A device of the cluster has no sheet.
    """
    names = list(dict.fromkeys(group.gpu for group in job.cluster))
    measured = {each.header.device: each for each in read_profiles(profile)} if profile else {}
    if measured and not measured.keys() & set(names):
        found = next(iter(measured))
        raise FileError(
            str(profile),
            "is a profile of another device than the job's cluster",
            field="device",
            value=", ".join(measured),
            allowed=", ".join(names),
            nearest=nearest_name(found, names),
        )
    rule_seconds = job.rewards.function_seconds_per_sample if job.rewards else None
    devices = {}
    for name in names:
        own = measured.get(name)
        devices[name] = DeviceFacts(sheet_of(job, name), own, rule_seconds=rule_seconds)
    label = _label([measured[name] for name in names if name in measured])
    facts = Facts(devices, label)
    return facts.with_calibration(read_calibration(site, label)) if site else facts


def read_calibration(path: Path, rests_on: str) -> Calibration:
    """Return the factors of a site.

    Args:
        rests_on: Label of the facts that they are to be used with.

    Raises:
        FileError: The file is missing or broken, or its factors correct forecasts of another label.
    """
    data = load_yaml(path)
    check_version(data, CALIBRATION_VERSION, str(path), "site")
    found = decode(Calibration, data, str(path))
    if found.rests_on != rests_on:
        raise FileError(
            str(path),
            "corrects forecasts that rest on something else",
            field="rests_on",
            value=found.rests_on,
            allowed=f"{rests_on}, or a site calibrated with the same --profile",
        )
    return found


def _label(profiles: Sequence[Profile]) -> str:
    if not profiles:
        return DATASHEET
    names = ", ".join(dict.fromkeys(each.header.name for each in profiles))
    devices = ", ".join(each.header.device for each in profiles)
    unfinished = "" if all(each.complete for each in profiles) else ", incomplete"
    return f"profile {names} ({devices}{unfinished})"
