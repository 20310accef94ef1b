"""A search beside a run: in a process of its own that yields to the run's workers."""

import os
import signal
import threading
import time
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, Self

from rlplan.plan import Plan
from rlplan.planner.adapting.proposing import Proposals, Request, proposals, searched_before
from rlplan.planner.exact.deadlines import count_core_seconds
from rlplan.profiles.facts import Facts, load_facts
from rlplan.replicas import ReplicaDevices

# A search takes what is free first, and of a core whose worker never waits a quarter (setpriority(2)). How much it takes in all is limited by its
# share of a run; a lower priority only draws that out, while the run goes on by the worse plan: at 19 one of a second has had no answer in 173 s.
NICENESS: Final = 5
# What says a session's own niceness (sched(7), "The autogroup feature").
AUTOGROUP: Final = Path("/proc/self/autogroup")
LOOK_SECONDS: Final = 1.0


class Background:
    """Search in a process of its own, one request at a time; a context manager that ends it.

    It is to be entered before a run starts its Ray, which waits at its end for the processes that were started after it.

    Args:
        profile: Measured costs on which forecasts rest; None: data sheets.
        plan: With which the run begins: it is searched for others while the run's workers start.
        devices: Of its replicas that come and go; None: all stay.
    """

    def __init__(
        self,
        profile: Path | None = None,
        plan: Plan | None = None,
        devices: ReplicaDevices | None = None,
    ) -> None:
        context = get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(there, profile, plan, devices), name="rlplan-search", daemon=True
        )
        self._process.start()
        there.close()
        self._asked: Request | None = None

    def ask(self, request: Request) -> None:
        """Begin a search."""
        self._asked = request
        with suppress(OSError):  # it has ended: the answer says so
            self._here.send(request)

    def answer(self) -> Proposals | None:
        """Return what was found, once; None as long as there is nothing."""
        if self._asked is None:
            return None
        try:
            if not self._here.poll():
                return None
            found: Proposals = self._here.recv()
        except (OSError, EOFError):
            found = Proposals(request=self._asked, notes=("the process that searches has ended",))
        self._asked = None
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._here.close()


class AtOnce:
    """Search while the run waits.

    Args:
        facts: What operations take.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._found: Proposals | None = None

    def ask(self, request: Request) -> None:
        """Search now."""
        self._found = proposals(request, self._facts)

    def answer(self) -> Proposals | None:
        """Return what was found, once."""
        found, self._found = self._found, None
        return found


def _serve(
    there: Connection, profile: Path | None, plan: Plan | None, devices: ReplicaDevices | None
) -> None:
    """Answer requests until nobody asks any more."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C goes to the whole group; the run ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _yield_to_others()
    count_core_seconds()  # it may get a part of a core: the same requests are to have the same answers
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    facts, before = None, None
    if plan is not None:
        with suppress(Exception):  # a request says what fails
            facts = load_facts(plan.job, profile)
            before = searched_before(plan, facts, devices)
    while True:
        try:
            request = there.recv()
        except (OSError, EOFError):
            return
        try:
            facts = facts or load_facts(request.measured.plan.job, profile)
            found = proposals(request, facts, before)
            before = None  # what changes behind the first look may make others better
        except Exception as error:  # noqa: BLE001 -- a run does not end for what a search beside it does
            found = Proposals(request=request, notes=(f"the search failed: {error!r}",))
        with suppress(OSError):  # who asked has ended: so does this, at the next look
            there.send(found)


def _yield_to_others() -> None:
    """Take a low priority, in a session of its own.

    Linux shares cores out between sessions first, and by niceness only inside one: workers are of Ray's session.
    """
    os.nice(NICENESS)
    with suppress(OSError):
        os.setsid()
        AUTOGROUP.write_text(str(NICENESS), encoding="ascii")


def _end_with(parent: int) -> None:
    """End this process when its parent does: signals to the parent's group and session do not come here."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(0)
