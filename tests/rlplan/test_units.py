"""Figures for people: the unit is chosen by what is shown, and nothing is lost between two units."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.units import GIB, MIB, show_bytes, show_filled, show_joules, show_seconds


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 s"),
        (9.999e-4, "999.9 µs"),
        (0.99997, "1.00 s"),
        (119.994, "119.99 s"),
        (119.997, "2 min 0 s"),
        (539.7, "9 min 0 s"),
        (-539.7, "-9 min 0 s"),
        (7199.6, "2.0 h"),
    ],
)
def test_seconds_are_rounded_before_their_unit_is_chosen(seconds, shown):
    assert show_seconds(seconds) == shown


@given(st.floats(0, 7190))
def test_no_minute_has_sixty_seconds_and_what_is_shown_is_near(seconds):
    number, unit, *rest = show_seconds(seconds).split()
    scale = {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60}[unit]
    left = int(rest[0]) if rest else 0
    assert left < 60
    assert math.isclose(float(number) * scale + left, seconds, rel_tol=0.01, abs_tol=1e-7)


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [
        (1010 * MIB, "1.0 GiB"),
        (999.4 * MIB, "999 MiB"),
        (46.1 * MIB, "46.1 MiB"),
        (1000 * 1024, "0.977 MiB"),
        (512, "512 B"),
        (80 * GIB, "80.0 GiB"),
    ],
)
def test_bytes_never_need_an_exponent(num_bytes, shown):
    assert show_bytes(num_bytes) == shown


@given(st.floats(0, 1e15))
def test_sizes_and_energies_are_shown_without_exponents(value):
    assert "e" not in show_bytes(value)
    assert "e+" not in show_joules(min(value, 9e11))


def test_what_is_filled_has_one_unit():
    assert show_filled(71.2 * GIB, 79.6 * GIB) == "71.2 of 79.6 GiB"
