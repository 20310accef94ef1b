"""Conversions at the edge: everything inside is SI (seconds, bytes, floating point operations).

Only this module knows GiB, milliseconds, gigabits or TFLOP/s. Bandwidth is per GPU and in one
direction everywhere in rlplan.
"""

from dataclasses import dataclass

KIB = 1024
MIB = 1024**2
GIB = 1024**3
GB = 10**9


def bytes_from_gib(gib: float) -> int:
    """Return bytes from GiB (2**30 bytes)."""
    return round(gib * GIB)


def gib_from_bytes(num_bytes: float) -> float:
    """Return GiB from bytes."""
    return num_bytes / GIB


def bytes_per_second_from_gbps(gbps: float) -> float:
    """Return bytes per second from gigabits per second (10**9 bits)."""
    return gbps * 1e9 / 8


def seconds_from_ms(milliseconds: float) -> float:
    """Return seconds from milliseconds."""
    return milliseconds * 1e-3


def microseconds_from_seconds(seconds: float) -> float:
    """Return microseconds from seconds, to the nanosecond, for trace files."""
    return round(seconds * 1e6, 3)


def show_seconds(seconds: float) -> str:
    """Return a duration for people, such as `12.3 ms`, `4.56 s` or `3 min 20 s`."""
    magnitude = abs(seconds)
    if magnitude < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    if magnitude < 1:
        return f"{seconds * 1e3:.1f} ms"
    if magnitude < 120:
        return f"{seconds:.2f} s"
    if magnitude < 2 * 3600:
        return f"{int(seconds // 60)} min {seconds % 60:.0f} s"
    return f"{seconds / 3600:.1f} h"


def show_bytes(num_bytes: float) -> str:
    """Return a size for people, in the binary unit that fits, such as `1.5 GiB`."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(num_bytes) >= size:
            return (
                f"{num_bytes / size:.3g} {unit}" if unit != "GiB" else f"{num_bytes / size:.1f} GiB"
            )
    return f"{num_bytes:.0f} B"


def show_joules(joules: float) -> str:
    """Return an energy for people, in the decimal unit that fits, such as `1.5 MJ`."""
    for unit, size in (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3)):
        if abs(joules) >= size:
            return f"{joules / size:.3g} {unit}"
    return f"{joules:.3g} J"


def seconds_scale(largest_seconds: float) -> tuple[str, float]:
    """Return the unit of an axis up to `largest_seconds`: its word and its length in seconds."""
    for word, each_seconds in (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0)):
        if largest_seconds >= 2 * each_seconds or (word == "seconds" and largest_seconds >= 1):
            return word, each_seconds
    return ("milliseconds", 1e-3) if largest_seconds >= 1e-3 else ("microseconds", 1e-6)


def bytes_scale(largest_bytes: float) -> tuple[str, float]:
    """Return the unit of an axis up to `largest_bytes`: its word and its size in bytes."""
    for word, each_bytes in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if largest_bytes >= 2 * each_bytes:
            return word, float(each_bytes)
    return "bytes", 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAs:
    """Say how values of an objective are shown in tables and pictures.

    Attributes:
        heading: Of a column or an axis, with the unit of what is shown.
        divisor: What a value is divided by, such as 1000 for kilojoules.
        is_reciprocal: Whether one over the value is shown, such as tokens by the second.
        digits: After the decimal point.
    """

    heading: str
    divisor: float = 1.0
    is_reciprocal: bool = False
    digits: int = 3

    def number(self, value: float) -> float:
        """Return what is shown of a value, in the heading's unit."""
        return 1 / value if self.is_reciprocal else value / self.divisor

    def words(self, value: float) -> str:
        """Return what is shown of a value, as it stands in a table."""
        return f"{self.number(value):,.{self.digits}f}"
