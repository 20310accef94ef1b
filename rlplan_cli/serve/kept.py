"""Answers that were given, by what was asked: the same question of a page is not worked out twice."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlplan.files.writing import plain
from rlplan.profiles.tables.remembered import LeastRecentlyUsed
from rlplan_cli.serve.asked import Asked, SearchAsked

if TYPE_CHECKING:
    from rlplan_cli.serve.work import Found

# Of answers, some hundred kilobytes each.
MOST_KEPT = 64
# What is the same whenever it is asked; a log is read once.
KEPT_WORKS = frozenset({"answer", "search", "fit", "export"})
# A script's words, any of which may be a path, and its first line, which names a shell.
WORDS = re.compile(r"[^\s'\"=:,;()\[\]{}<>|&]+")
FIRST_LINE = re.compile(r"\A#![^\n]*")
# Different ones that are looked at; a script with more may name some file.
MOST_WORDS = 2000
# Of which nothing is read.
NO_FILES = ("/dev/",)
# Of folders that are everywhere.
NO_NAMES = frozenset({".", ".."})


class KeptAnswers:
    """Keep the answers asked for last, by all that was asked.

    Questions that name a file or folder of this machine are not kept: it may change. Mistakes are not kept either, since
    what was missing may be there the next time; nor is a search that its limit of time ended.
    """

    def __init__(self) -> None:
        self._found: LeastRecentlyUsed[bytes, Found] = LeastRecentlyUsed(MOST_KEPT)

    def get(self, work: str, asked: Asked) -> Found | None:
        """Return what a question was answered with; None where that is not kept."""
        found = self._found.get(_key(work, asked))
        return None if found is None or names_files(asked) else found

    def keep(self, work: str, asked: Asked, found: Found) -> None:
        """Keep an answer, if it would be the same again."""
        if work not in KEPT_WORKS or names_files(asked) or _was_stopped(asked, found.answer):
            return
        self._found.keep(_key(work, asked), found)


def names_files(asked: Asked) -> bool:
    """Tell whether a question names, or may name, a file or folder that is on this machine."""
    words = [asked.model, asked.gpu]
    if asked.script is not None:
        text = "\n".join((FIRST_LINE.sub("", asked.script.text), *asked.taken))
        found = dict.fromkeys(each[0] for each in WORDS.finditer(text))
        if len(found) > MOST_WORDS:
            return True
        words = [asked.gpu, *found]
    return any(map(_is_there, words))


def _is_there(word: str) -> bool:
    if word.startswith(NO_FILES) or word in NO_NAMES:
        return False
    try:
        return Path(os.path.expandvars(word)).expanduser().exists()
    except (
        OSError,
        RuntimeError,
        ValueError,
    ):  # no name that a file can have, or of no user's home
        return False


def _was_stopped(asked: Asked, answer: dict[str, Any]) -> bool:
    """Tell whether a search ended by its limit of time: another one may find more."""
    if not isinstance(asked, SearchAsked) or asked.seconds is None:
        return False
    return bool(answer["search_seconds"] >= asked.seconds)


def _key(work: str, asked: Asked) -> bytes:
    """Return what tells a question from others: all of it, in few bytes."""
    told = json.dumps([work, type(asked).__name__, plain(asked, drop_none=False)], sort_keys=True)
    return hashlib.sha256(told.encode("utf-8", "surrogatepass")).digest()
