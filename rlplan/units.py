"""Conversions at the edge: everything inside is SI (seconds, bytes, floating point operations).

Only this module knows GiB, milliseconds, gigabits or TFLOP/s. Bandwidth is per GPU and in one
direction everywhere in rlplan.
"""

from dataclasses import dataclass

KIB = 1024
MIB = 1024**2
GIB = 1024**3
GB = 10**9


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
    """Return a duration for people, such as `12.3 ms`, `4.56 s` or `3 min 20 s`.

    The unit is chosen by what is shown: 59.7 s after 8 min are 9 min, and 999.97 ms are a second. Nothing, such as the p10 of
    what may be off by more than itself, is `0 s`.
    """
    if seconds == 0:
        return "0 s"
    sign, magnitude = ("-" if seconds < 0 else ""), abs(seconds)
    if round(magnitude * 1e6, 1) < 1000:
        return f"{sign}{magnitude * 1e6:.1f} µs"
    if round(magnitude * 1e3, 1) < 1000:
        return f"{sign}{magnitude * 1e3:.1f} ms"
    if round(magnitude, 2) < 120:
        return f"{sign}{magnitude:.2f} s"
    if round(magnitude) < 2 * 3600:
        minutes, rest = divmod(round(magnitude), 60)
        return f"{sign}{minutes} min {rest} s"
    return f"{sign}{magnitude / 3600:.1f} h"


HOURS_OF_A_DAY = 24
# A duration from so many hours on is told in days.
DAYS_FROM_HOURS = 48


def show_duration(seconds: float) -> str:
    """Return how long a run takes for people: as `show_seconds` below two days, else such as `3 d 16 h`."""
    hours = round(seconds / 3600)
    if hours < DAYS_FROM_HOURS:
        return show_seconds(seconds)
    days, rest = divmod(hours, HOURS_OF_A_DAY)
    return f"{days:,} d {rest} h"


def seconds_from_hours(hours: float) -> float:
    """Return seconds from hours."""
    return hours * 3600.0


def seconds_from_days(days: float) -> float:
    """Return the seconds of so many days."""
    return seconds_from_hours(days * HOURS_OF_A_DAY)


def hours_from_seconds(seconds: float) -> float:
    """Return hours from seconds."""
    return seconds / 3600.0


# From so many of a unit on the next one is shown: three digits never become `1e+03`.
NEXT_UNIT_FROM = 999.5


def show_bytes(num_bytes: float) -> str:
    """Return a size for people, in the binary unit that fits, such as `1.5 GiB`."""
    if abs(num_bytes) >= NEXT_UNIT_FROM * MIB:
        return f"{num_bytes / GIB:,.1f} GiB"
    for unit, size, smaller in (("MiB", MIB, KIB), ("KiB", KIB, 1)):
        if abs(num_bytes) >= NEXT_UNIT_FROM * smaller:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def show_filled(num_bytes: float, capacity_bytes: float) -> str:
    """Return how much of a memory is taken, in one unit, such as `71.2 of 79.6 GiB`."""
    word, size = bytes_scale(capacity_bytes)
    return f"{num_bytes / size:,.1f} of {capacity_bytes / size:,.1f} {word}"


def show_joules(joules: float) -> str:
    """Return an energy for people, in the decimal unit that fits, such as `1.5 MJ`."""
    for unit, size in (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3)):
        if abs(joules) >= size * NEXT_UNIT_FROM / 1000:
            return f"{joules / size:.3g} {unit}"
    return f"{joules:.3g} J"


def show_usd(usd: float) -> str:
    """Return an amount of money for people, such as `2.37 USD` or `0.0012 USD`."""
    if 0 < usd < SMALLEST_USD:
        return f"<{SMALLEST_USD:.4f} USD"
    return f"{usd:,.2f} USD" if usd >= 1 else f"{usd:.4f} USD"


# From so many USD on, cents are left out.
WHOLE_USD_FROM = 100.0


def whole_usd(usd: float) -> str:
    """Return an amount of money, without cents where they say nothing."""
    return f"{usd:,.0f} USD" if usd >= WHOLE_USD_FROM or usd == 0 else show_usd(usd)


# Below it, digits of an amount say nothing to who pays it.
SMALLEST_USD = 1e-4


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

    @property
    def unit(self) -> str:
        """Return the heading as it stands behind a number in a sentence."""
        first, rest = self.heading[:1], self.heading[1:]
        return self.heading if rest[:1].isupper() else first.lower() + rest

    def number(self, value: float) -> float:
        """Return what is shown of a value, in the heading's unit."""
        return 1 / value if self.is_reciprocal else value / self.divisor

    def words(self, value: float) -> str:
        """Return what is shown of a value, as it stands in a table."""
        return f"{self.number(value):,.{self.digits}f}"
