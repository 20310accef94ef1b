"""What an engine's keys say beside sizes: tokens that are guessed ahead, and a KV cache that goes on in host memory.

Of guesses they say what makes them, and how many; how many are accepted no key says.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rlplan.job import CacheOffload, Speculation
from rlplan.models import Precision
from rlplan.planner.configs.models import model_of
from rlplan.planner.configs.reading.settings import Settings
from rlplan.units import GIB

# Settings of sheets; in `speculation_on` stands a switch for the keys beside it.
SWITCH = "speculation_on"
SPECULATION_NAMES = ("speculation_method", "speculation_tokens", "speculation_steps", "speculation_checked", "speculation_draft", "speculation_by_batch")  # fmt: skip
NGRAMS, OWN_MODEL = ("ngram", "suffix"), ("standalone", "draft_model")
NOT_COUNTED = "speculative decoding, until the job says how many tokens a step gives: speculation.acceptance_length"

# Settings of sheets, where a framework hands them on: what turns it on, and how much of it there is.
CACHE_NAMES: Final = ("host_cache_on", "host_cache_gib", "host_cache_bytes", "host_cache_ratio", "host_cache_rank_gb", "host_cache_kind")  # fmt: skip
OWN_KINDS: Final = (None, "native", "OffloadingConnector")
CACHE_NOT_READ: Final = "a KV cache that goes on in host memory, until the job has environments whose turns read it again"
OTHER_CACHES: Final = (
    "a KV cache that goes on in a store that engines share, or is handed from one to another"
)
GB: Final = 10**9


def speculation_of(settings: Settings) -> Speculation | None:
    """Return how an engine guesses tokens ahead; None where it does not, or with what is not known."""
    given = {
        name: dict(_given(settings, name))
        for name in SPECULATION_NAMES
        if name in settings.sheet.settings
    }
    keys = [key for each in given.values() for key in each]
    switch = SWITCH in settings.sheet.settings and settings.on(SWITCH)
    if not keys and not switch:
        return None
    value = {name: _first(settings, name, found, switch=switch) for name, found in given.items()}
    guesses = _guesses(settings, value)
    said = None if guesses is None else _of_method(value, guesses)
    if said is not None:
        said = _by_batch(settings, value.get("speculation_by_batch"), said)
        for key in (*keys, *([settings.key_of(SWITCH)] if switch else [])):
            settings.left_out[key] = NOT_COUNTED
    return said


def engine_weights(settings: Settings) -> Precision | None:
    """Return the format that an engine casts weights to; None for the trainer's, or one that is not known."""
    word = str(settings.value("rollout_quantised"))
    if word.startswith("fp8"):
        return "fp8"
    if word != "None":
        settings.leave_out("rollout_quantised", "another format of the engine's weights")
    return None


def _given(settings: Settings, name: str) -> Iterator[tuple[str, object]]:
    """Yield a setting's keys that count, with their values; those beside a switch only where it is on."""
    beside, is_counted = "", True
    if SWITCH in settings.sheet.settings:
        beside = settings.key_of(SWITCH).rpartition(".")[0]
        is_counted = settings.on(SWITCH)
    for key in settings.sheet.settings[name].keys:
        found = settings.flat.get(key)
        if found is None or found.value is None or (found.gaps and not found.value):
            continue
        if is_counted or not beside or not key.startswith(f"{beside}."):
            yield key, None if found.gaps else found.value


def _first(settings: Settings, name: str, given: dict[str, object], *, switch: bool) -> object:
    usual = settings.sheet.settings[name].default if switch else None
    return next(iter(given.values()), usual)


def _guesses(settings: Settings, value: dict[str, object]) -> int | None:
    """Return the tokens that are guessed before each step; None where no key says it.

    SGLang counts the token that is sure among those that are checked; a chain has as many guesses as steps.
    """
    by_steps = (_whole(value.get("speculation_checked"), 1), _whole(value.get("speculation_steps")))
    by_tokens = (_whole(value.get("speculation_tokens")),)
    known = settings.sheet.settings
    sglang = "rollout_engine" in known and str(settings.value("rollout_engine")).startswith(
        "sglang"
    )
    order = (*by_steps, *by_tokens) if sglang else (*by_tokens, *by_steps)
    return next((count for count in order if count), None)


def _by_batch(settings: Settings, given: object, said: Speculation) -> Speculation:
    """Return how an engine guesses up to a number of running sequences, as vLLM's table of guesses by batch says it.

    Rows are a first and a last batch and its guesses, with those of contexts between where there are any; what lies
    between two rows, and behind the last, has the guesses of the row before (vLLM, v1/spec_decode/dynamic/utils.py). A job
    has one number of guesses, which an engine makes or does not.
    """
    rows = [tuple(row) for row in given if isinstance(row, list)] if isinstance(given, list) else []
    whole = all(len(row) in (3, 5) and all(isinstance(each, int) for each in row) for row in rows)
    if not rows or not whole:
        return said
    by_batch: dict[int, set[int]] = {}
    for row in rows:
        by_batch.setdefault(row[0], set()).add(min(row[-1], said.draft_tokens))
    guesses = sorted(by_batch.items())
    stops = next((first for first, counts in guesses if counts == {0}), None)
    goes_on = stops is not None and any(counts != {0} for first, counts in guesses if first > stops)
    others = set().union(*by_batch.values()) - {0, said.draft_tokens}
    mixed = any(0 in counts and len(counts) > 1 for counts in by_batch.values())
    if others or goes_on or mixed:
        up_to = "" if stops is None else f" up to {stops - 1} running sequences"
        note = (
            f"has other guesses at other batches or contexts: {said.draft_tokens} are taken{up_to}"
        )
        key = settings.key_of("speculation_by_batch")
        settings.notes = (*settings.notes, f"{key} {note}")
    if stops is None or stops <= 1:
        return said
    return replace(said, most_running=stops - 1)


def _whole(value: object, less: int = 0) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or value <= less:
        return None
    return value - less


def _of_method(value: dict[str, object], guesses: int) -> Speculation | None:
    """Return how a method guesses so many tokens; None where its model is not known."""
    method, named = (
        str(value.get("speculation_method") or "").lower(),
        value.get("speculation_draft"),
    )
    if method.startswith(NGRAMS):
        return Speculation(draft_tokens=guesses, layers=0)
    if method in OWN_MODEL or (not method and named is not None):
        known = model_of(str(named))
        return None if known is None else Speculation(draft_tokens=guesses, draft=known)
    return Speculation(draft_tokens=guesses)


# A KV cache that goes on in host memory, as a configuration says it by its engine's keys.


def offload_of(settings: Settings, ranks: int, *, plays: bool) -> CacheOffload | None:
    """Return how much host memory keeps of an engine's cache; None where none does, or none is read again.

    vLLM counts it for all ranks of an engine together (config/vllm.py, `cpu_bytes_to_use`), SGLang for each of them
    (mem_cache/memory_pool_host.py), where no size is said as so many times its cache.

    Args:
        ranks: GPUs of one replica of the engine.
        plays: Whether the job has environments.
    """
    given = {
        name: settings.value(name)
        for name in CACHE_NAMES
        if name in settings.sheet.settings and settings.is_given(name)
    }
    is_own = given.get("host_cache_kind") in OWN_KINDS
    said = _said(settings, given, ranks) if is_own else None
    if said is not None and plays:
        return said
    for name in given if said is not None or not is_own else ():
        settings.left_out[settings.key_of(name)] = CACHE_NOT_READ if is_own else OTHER_CACHES
    return None


def _said(settings: Settings, given: dict[str, object], ranks: int) -> CacheOffload | None:
    switch = "host_cache_on" in settings.sheet.settings and settings.on("host_cache_on")
    sizes = (
        ("host_cache_gib", GIB, True),
        ("host_cache_bytes", 1, True),
        ("host_cache_rank_gb", GB * ranks, switch),
    )
    for name, unit, counts in sizes:
        size = given.get(name)
        if counts and isinstance(size, int | float) and not isinstance(size, bool) and size > 0:
            return CacheOffload(replica_bytes=float(size) * unit)
    return CacheOffload(cache_ratio=settings.number("host_cache_ratio")) if switch else None
