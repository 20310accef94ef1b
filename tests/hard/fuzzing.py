"""Thousands of wrong inputs: each case is a seed and a number, and is the same anywhere."""

import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.hard import corpus, isolation
from tests.hard.mutation import dice_of, mutated

# Subjects of many files, which only their own cases need; configurations inherit from each other.
ALONE = ("model", "table")


@dataclass(frozen=True)
class Case:
    """Hold one case: which file gets which content, and what is run."""

    number: int
    subject: str
    file: str
    content: bytes | None
    arguments: list[str]


def case_of(seed, number, seeds, words, home):
    """Return a case by its number."""
    dice = dice_of(seed, number)
    subject = dice.choice(sorted({each.subject for each in seeds}))
    chosen = dice.choice([each for each in seeds if each.subject == subject])
    content = (home / chosen.file).read_bytes()
    arguments = dice.choice(chosen.commands).split()
    if dice.random() < 0.01:
        return Case(number, subject, chosen.file, None, arguments)
    return Case(number, subject, chosen.file, mutated(content, chosen.kind, dice, words), arguments)


def copied(case, seeds, home, folder):
    """Make a folder with the files that a case needs."""
    spare = {each.file for each in seeds if each.subject in ALONE}
    spare |= {each.file for each in seeds if each.subject == "config" != case.subject}
    spare -= {case.file, "verl.sh"}
    for path in home.rglob("*"):
        name = path.relative_to(home)
        if path.is_file() and str(name) not in spare:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(path, folder / name)


def run_case(case, seeds, home, folder):
    """Return what a case breaks, and its answer."""
    copied(case, seeds, home, folder)
    target = folder / case.file
    target.unlink()
    if case.content is None:
        target.mkdir()
    else:
        target.write_bytes(case.content)
    before = isolation.contents(folder)
    answer = isolation.run_isolated(case.arguments, folder)
    return isolation.faults(case.arguments, answer, before, isolation.contents(folder)), answer


def fuzz(cases, *, seed=0, first=0, kept=None, only=None, say=lambda _: None):
    """Run cases and return their counts and failures.

    Args:
        kept: Folder for the inputs of cases that fail.
        only: Subject (`job`, `plan`, ...) of the cases that are run; None: all.
    """
    isolation.prepare()
    counts, codes, failures = Counter(), Counter(), []
    slowest = largest = spent = 0
    with tempfile.TemporaryDirectory(prefix="rlplan-hard-") as name:
        home = Path(name, "home")
        home.mkdir()
        seeds, words = corpus.build(home)
        for number in range(first, first + cases):
            case = case_of(seed, number, seeds, words, home)
            if only and case.subject != only:
                continue
            folder = Path(name, f"case-{number}")
            found, answer = run_case(case, seeds, home, folder)
            counts[case.subject] += 1
            codes[answer.code] += 1
            spent += answer.cpu_seconds
            slowest = max(slowest, answer.cpu_seconds)
            largest = max(largest, answer.growth_bytes)
            if found:
                failures.append(_failure(seed, case, found, answer))
                say(f"seed {seed}, case {number}: {' '.join(case.arguments)}: {'; '.join(found)}")
                _keep(kept, case, answer)
            shutil.rmtree(folder)
    return {
        "seed": seed, "cases": sum(counts.values()), "subjects": dict(sorted(counts.items())),
        "exit_codes": {str(code): codes[code] for code in sorted(codes)},
        "slowest_cpu_seconds": slowest, "largest_growth_bytes": largest, "cpu_seconds": spent, "failures": failures,
    }  # fmt: skip


def _failure(seed, case, found, answer):
    said = (answer.err.strip().splitlines() or [""])[-1]
    return {"seed": seed, "case": case.number, "subject": case.subject, "file": case.file,
            "command": " ".join(case.arguments), "faults": found, "said": said[:400]}  # fmt: skip


def _keep(kept, case, answer):
    if kept is not None:
        folder = Path(kept) / str(case.number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "input").write_bytes(case.content or b"")
        (folder / "err").write_text(
            f"{case.file}\n{' '.join(case.arguments)}\n{answer.err}", errors="replace"
        )
