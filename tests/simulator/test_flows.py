"""What the simulator knows of modes: their flow, and no name."""

import re

from rlplan.plan import FLOWS
from tests.house.tree import ROOT, room_modules

NAMED = re.compile(rf"""["'`]({"|".join(map(re.escape, FLOWS))})["'`]""")


def test_the_simulator_names_no_mode():
    named = {
        f"{path}: {found.group()}"
        for path in room_modules()
        if path.parts[0] == "simulator"
        for found in NAMED.finditer((ROOT / path).read_text(encoding="utf-8"))
    }
    assert not named
