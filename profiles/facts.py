"""Facts about devices, engines and operations: what the simulator asks, answered from one place.

A measured point answers first, then what lies between measured points, then the roofline over the
device's sheet. Every answer names its source; nothing that is unknown costs zero.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from profiles.analytic.host_calls import unmeasured_call
from profiles.analytic.roofline import CollectiveKind, CopyDirection, Roofline
from profiles.catalog import load_device, load_engine
from profiles.kernels.constants import RowKind
from profiles.kernels.row_time import row_bytes
from profiles.sheets import load_transition, sheet_names
from profiles.tables.lookup import Shape
from profiles.tables.measurements import Measurements
from profiles.tables.table import Profile, read_profile
from rlplan.errors import FileError, UnknownNameError, nearest_name
from rlplan.estimate import ZERO, Estimate, Source
from rlplan.files.frozen import FrozenDict
from rlplan.hardware import DeviceSheet, EngineSheet
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE
from rlplan.precision import PRECISIONS, Precision
from rlplan.probing import ModelPass
from rlplan.transition import TransitionSheet


class DeviceFacts:
    """Answer what operations take on one device; every look-up is remembered.

    Args:
        profile: Measured points of this device, if there are any.
        rule_seconds: What one call of a reward rule takes, when the profile does not know it.
    """

    def __init__(
        self,
        sheet: DeviceSheet,
        profile: Profile | None = None,
        *,
        rule_seconds: float | None = None,
    ) -> None:
        self.sheet = sheet
        self.profile = profile
        self._rule_seconds = rule_seconds
        self._roofline = Roofline(sheet)
        # Remembered per instance: a search asks the same few thousand questions 1e5 times.
        self._gemm = cache(self._look_up_gemm)
        self._attention = cache(self._look_up_attention)
        self._memory_bound = cache(self._look_up_memory_bound)
        self._rowwise = cache(self._look_up_rowwise)
        self._optimizer = cache(self._look_up_optimizer)
        self._copy = cache(self._look_up_copy)
        self._call = cache(self._look_up_call)
        self._collective = cache(self._look_up_collective)
        self._pass = cache(self._look_up_pass)
        self._points = Measurements(profile, self._roofline)

    @property
    def context_bytes(self) -> int:
        """Return the bytes of a device that a worker holds beside models: measured, or the sheet's."""
        measured_bytes = self.profile.header.context_bytes if self.profile is not None else 0
        return measured_bytes or self.sheet.reserved_bytes

    def gemm(self, m: int, k: int, n: int, precision: Precision) -> Estimate:
        """Return the seconds of an m x k times k x n matrix product."""
        return self._gemm(m, k, n, precision)

    def attention(  # noqa: PLR0913 -- the shape of an attention has that many sides
        self,
        *,
        batch: int,
        query_tokens: int,
        cached_tokens: int,
        q_heads: int,
        kv_heads: int,
        head_dim: int,
        precision: Precision,
        backward: bool = False,
        fused: bool = True,
        causal: bool = True,
        paged: bool = False,
        table_tokens: int = 0,
    ) -> Estimate:
        """Return the seconds of the attention of one layer, without its projections.

        Args:
            query_tokens: New tokens of each sequence; 1 for a decode step.
            cached_tokens: Tokens before them whose keys and values are cached.
            fused: Whether one kernel does it all (used by the roofline only).
            paged: Whether it is the kernel of 2024's engines over a paged cache (as `fused`).
            table_tokens: Tokens for which its block table has room, if more than the cached ones.
        """
        return self._attention(
            (batch, query_tokens, cached_tokens),
            (q_heads, kv_heads, head_dim),
            precision,
            backward,
            fused,
            causal,
            paged,
            table_tokens,
        )

    def memory_bound(self, num_bytes: float, kernels: float = 1) -> Estimate:
        """Return the seconds of norms, activations and the like, by the bytes that they move.

        Args:
            num_bytes: Read and written, by all `kernels` together.
        """
        return self._memory_bound(num_bytes, kernels)

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
        return self._rowwise(kind, rows, width, precision, second_width)

    def optimizer_step(self, parameters: int, precision: Precision) -> Estimate:
        """Return the seconds of one optimizer step over `parameters` on this device."""
        return self._optimizer(parameters, precision)

    def copy(self, num_bytes: float, direction: CopyDirection) -> Estimate:
        """Return the seconds of a copy between host and device, or inside the device."""
        return self._copy(num_bytes, direction)

    def call(self, num_bytes: float = 0, kind: str = "actor_call") -> Estimate:
        """Return the seconds of a call to another process that passes `num_bytes`.

        Args:
            kind: `actor_call`, `object_fetch`, `process_start`, or `rule:<name>` for one call of a
                reward rule.

        Raises:
            MissingFactError: A rule was neither measured nor given in the job.
        """
        return self._call(num_bytes, kind)

    def collective(
        self,
        kind: CollectiveKind,
        num_bytes: float,
        ranks: int,
        *,
        ranks_per_node: int,
        inter_node_bytes_per_second: float,
    ) -> Estimate:
        """Return the seconds of a collective; ranks are never extrapolated from other rank counts.

        Args:
            num_bytes: Of the full tensor.
            inter_node_bytes_per_second: Each GPU's share of its node's network cards.
        """
        if ranks <= 1:
            return ZERO
        per_node = min(ranks_per_node, ranks)
        return self._collective(kind, num_bytes, ranks, per_node, inter_node_bytes_per_second)

    def model_pass(self, model_pass: ModelPass) -> Estimate | None:
        """Return the seconds of a whole pass; None when its model and layout were not measured."""
        return self._pass(model_pass)

    def launch(self, kernels: float) -> Estimate:
        """Return the host's seconds to launch `kernels`, for engines that do not hide launches.

        The other look-ups hold the device's time alone, on a CPU with its dispatch.
        """
        return self._roofline.launch(kernels)

    def _look_up_gemm(self, m: int, k: int, n: int, precision: Precision) -> Estimate:
        scatter = self._points.gemms(precision)
        return scatter.at((m, k, n)) if scatter else self._roofline.gemm(m, k, n, precision)

    def _look_up_attention(
        self,
        shape: Shape,
        heads: Shape,
        precision: Precision,
        backward: bool,
        fused: bool,
        causal: bool,
        paged: bool,
        table_tokens: int,
    ) -> Estimate:
        scatter = self._points.attentions(heads, precision, backward) if causal else None
        if scatter:
            return scatter.at(shape)
        batch, query_tokens, cached_tokens = shape
        q_heads, kv_heads, head_dim = heads
        return self._roofline.attention(
            batch=batch,
            query_tokens=query_tokens,
            cached_tokens=cached_tokens,
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            precision=precision,
            backward=backward,
            fused=fused,
            causal=causal,
            paged=paged,
            table_tokens=table_tokens,
        )

    def _look_up_memory_bound(self, num_bytes: float, kernels: float) -> Estimate:
        estimate = self._roofline.memory_bound(num_bytes, kernels)
        ratio = self._points.memory_ratio
        if ratio is None:
            return estimate
        seconds = estimate.seconds * ratio.seconds
        return Estimate(seconds, estimate.seconds * ratio.spread_seconds, Source.FITTED)

    def _look_up_rowwise(
        self, kind: RowKind, rows: int, width: int, precision: Precision, second_width: int
    ) -> Estimate:
        if self._points.memory_ratio is None:
            return self._roofline.rowwise(kind, rows, width, precision, second_width)
        value_bytes = PRECISIONS[precision].weight_bytes
        return self._look_up_memory_bound(
            row_bytes(kind, rows, width + second_width, value_bytes), 1
        )

    def _look_up_optimizer(self, parameters: int, precision: Precision) -> Estimate:
        line = self._points.line("optimizer", (precision,))
        return line.at(parameters) if line else self._roofline.optimizer_step(parameters, precision)

    def _look_up_copy(self, num_bytes: float, direction: CopyDirection) -> Estimate:
        line = self._points.line("copy", (direction,))
        return line.at(num_bytes) if line else self._roofline.copy(num_bytes, direction)

    def _look_up_call(self, num_bytes: float, kind: str) -> Estimate:
        line = self._points.line("call", (kind,))
        if line is not None:
            return line.at(num_bytes)
        return unmeasured_call(num_bytes, kind, self.sheet.name, self._rule_seconds)

    def _look_up_collective(
        self,
        kind: CollectiveKind,
        num_bytes: float,
        ranks: int,
        per_node: int,
        inter_node_bytes_per_second: float,
    ) -> Estimate:
        line = self._points.line("collective", (kind, ranks, per_node))
        if line is not None:
            return line.at(num_bytes)
        return self._roofline.collective(
            kind,
            num_bytes,
            ranks,
            ranks_per_node=per_node,
            inter_node_bytes_per_second=inter_node_bytes_per_second,
        )

    def _look_up_pass(self, model_pass: ModelPass) -> Estimate | None:
        return self._points.passes.at(model_pass)


class Facts:
    """Answer for all devices of a job's cluster, and for engines.

    Attributes:
        label: What the answers rest on, for reports.
    """

    def __init__(self, devices: Mapping[str, DeviceFacts], label: str) -> None:
        assert devices
        self._devices = dict(devices)
        self.label = label

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

    def engine(self, name: str) -> EngineSheet:
        """Return the sheet of a training or generation engine.

        Raises:
            UnknownNameError: There is no such engine.
        """
        return _engine(name)

    def transition(self, name: str, device: str) -> TransitionSheet:
        """Return what software adds to a transition on a device; nothing where no sheet says it."""
        if self.device(device).sheet.kind == "cpu" or name not in sheet_names("transitions"):
            return NO_SOFTWARE
        return load_transition(name)


NO_SOFTWARE = TransitionSheet(name="none", sources=FrozenDict())
_engine = cache(load_engine)


def load_facts(job: Job, profile: Path | None = None) -> Facts:
    """Return the facts about a job's cluster, from its device sheets and a profile, if given.

    Raises:
        FileError: The profile is broken, or of a device that the cluster does not have.
        UnknownNameError: A device of the cluster has no sheet.
    """
    names = list(dict.fromkeys(group.gpu for group in job.cluster))
    measured_points = read_profile(profile) if profile else None
    if profile and measured_points and measured_points.header.device not in names:
        found = measured_points.header.device
        raise FileError(
            str(profile),
            "is a profile of another device than the job's cluster",
            field="device",
            value=found,
            allowed=", ".join(names),
            nearest=nearest_name(found, names),
        )
    rule_seconds = job.rewards.function_seconds_per_sample if job.rewards else None
    devices = {}
    for name in names:
        own = measured_points if measured_points and measured_points.header.device == name else None
        devices[name] = DeviceFacts(load_device(name), own, rule_seconds=rule_seconds)
    return Facts(devices, _label(measured_points))


def _label(profile: Profile | None) -> str:
    if profile is None:
        return "datasheet"
    unfinished = "" if profile.complete else ", incomplete"
    return f"profile {profile.header.name} ({profile.header.device}{unfinished})"
