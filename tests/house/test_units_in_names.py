"""Units in names: every number that has a dimension says so, in SI."""

import ast
import re
from pathlib import Path

import pytest
import yaml

from tests.house.tree import ROOT, Declared, declared_in, own_modules

# Units other than SI base ones live in rlplan/units.py, where they are converted.
FOREIGN_UNITS = frozenset(
    "ms msec millis milliseconds us usec micros microseconds ns nanos nanoseconds sec secs "
    "minutes mins kb mb gb tb kib mib gib tib gbit gbits gbps mbps tbps gbs tflops gflops pflops "
    "khz mhz ghz kwh".split()
)

# A number whose name ends here leaves its unit to be guessed.
DIMENSIONS_WITHOUT_UNIT = frozenset(
    "time times latency latencies duration durations delay elapsed timeout makespan bandwidth "
    "throughput memory mem energy overhead".split()
)

RATES = re.compile(r"_per_(s|sec)(_|$)|(^|_)bw(_|$)")

# Names that a user writes or reads elsewhere in another unit, converted where they are read.
AT_THE_EDGE = {
    "inter_node_gbps": "network cards are sold in Gbit/s; the job file speaks as their sheets do",
    "intra_node_gbps": "as inter_node_gbps",
}


def fault(declared: Declared) -> str | None:
    """Return what is wrong with a name, or None."""
    words = declared.name.strip("_").split("_")
    if declared.name in AT_THE_EDGE:
        return None
    foreign = [word for word in words if word in FOREIGN_UNITS]
    if foreign:
        return f"unit {foreign[0]!r} belongs in rlplan/units.py"
    if RATES.search(declared.name):
        return "rates are spelt out: `_bytes_per_second`"
    if words[-1] in DIMENSIONS_WITHOUT_UNIT and declared.is_number:
        return f"{words[-1]!r} says no unit: `_seconds`, `_bytes`, `_joules`, `_per_second`"
    return None


def declared(name: str, annotation: str = "float") -> Declared:
    parsed = ast.parse(annotation, mode="eval").body
    return Declared(file=Path("somewhere.py"), line=1, name=name, annotation=parsed)


@pytest.mark.parametrize(
    "name",
    ["latency_ms", "memory_gb", "peak_gib", "link_gbps", "bw", "link_bw", "bytes_per_s", "time",
     "step_time", "bandwidth", "timeout", "gpu_memory", "peak_tflops"],
)  # fmt: skip
def test_a_number_without_an_si_unit_is_found(name):
    assert fault(declared(name)) is not None


@pytest.mark.parametrize(
    ("name", "annotation"),
    [
        ("step_seconds", "float"),
        ("peak_bytes", "int"),
        ("link_bytes_per_second", "float"),
        ("peak_flops_per_second", "float"),
        ("num_layers", "int"),
        ("memory", "MemoryForecast"),
        ("hidden_fraction", "float"),
    ],
)
def test_a_name_with_its_unit_passes(name, annotation):
    assert fault(declared(name, annotation)) is None


@pytest.mark.parametrize("annotation", ["float", "int | None", "tuple[float, ...]", "np.ndarray"])
def test_numbers_are_recognised_in_collections_too(annotation):
    assert fault(declared("latency", annotation)) is not None


def test_fields_and_parameters_carry_si_units():
    faults = [
        f"{each.file}:{each.line}: {each.name}: {problem}"
        for file in own_modules()
        if file != Path("rlplan/units.py")
        for each in declared_in(file)
        if (problem := fault(each))
    ]
    assert not faults, "\n" + "\n".join(faults)


def keys_of(value: object) -> set[str]:
    if isinstance(value, dict):
        return {str(key) for key in value}.union(*(keys_of(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(keys_of(item) for item in value))
    return set()


def test_sheets_speak_si_too():
    faults = [
        f"{path.relative_to(ROOT)}: {key}: {problem}"
        for path in sorted((ROOT / "profiles").rglob("*.yaml"))
        if path.name != "keys.yaml"  # a framework's own names of keys
        for key in sorted(keys_of(yaml.safe_load(path.read_text(encoding="utf-8"))))
        if (problem := fault(declared(key, "None")))
    ]
    assert not faults, "\n" + "\n".join(faults)
