"""Logs as runs leave them: cut anywhere, of a run that was started again, moved away, with bytes that are no text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.planner.measured.following import SILENT_SECONDS, Silence, followed, states_of

RAY = "\x1b[36m(TaskRunner pid=812)\x1b[0m "


def verl(first, count, seconds=80.0):
    """Return lines of verl's console, a progress bar behind each."""
    return "".join(
        f"{RAY}step:{at} - timing_s/gen:30.5 - timing_s/update_actor:29.5 - timing_s/step:{seconds + at}"
        f" - response_length/mean:{220 + at}\n{RAY}Training: {at}%|█▏  | {at}/435 [1:20<9:00] 你好\n"
        for at in range(first, first + count)
    )


def nemo_rl(first, count, seconds=45.0):
    """Return blocks of NeMo-RL's console."""
    return "".join(
        f"\n========================= Step {at}/100 =========================\n📊 Training Results:\n"
        f"  • Loss: 0.0123\n  • Mean Generation Length: {800 + at}.5000\n⏱️  Timing:\n"
        f"  • Total step time: {seconds + at}s\n  • generation: 20.13s (44.4%)\n"
        for at in range(first, first + count)
    )


def openrlhf(first, count, seconds=70.0):
    """Return lines of OpenRLHF's console."""
    return "".join(
        f"(PPOTrainer pid=33) Global step {at}: {{'response_length': {600 + at}.0, 'timing/generation': 30.1, "
        f"'timing/step_total': {seconds + at}}}\n"
        for at in range(first, first + count)
    )


def slime(first, count, seconds=72.0):
    """Return lines of slime's console: what was generated, then the update."""
    return "".join(
        f"(RolloutManager pid=9) perf {at}: {{'perf/rollout_time': {seconds - 32}, 'rollout/response_len/max': {700 + at}}}\n"
        f"(TrainRayActor pid=10) perf {at}: {{'perf/actor_train_time': 20.0, 'perf/step_time': {seconds + at}}}\n"
        for at in range(first, first + count)
    )


LOGS = {each.__name__: each for each in (verl, nemo_rl, openrlhf, slime)}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("logs") / "train.log"


def steps_in(place, data):
    """Return numbers and figures of what a log has while it grows."""
    place.write_bytes(data if isinstance(data, bytes) else data.encode())
    found = followed(place, grows=True)
    return [] if found is None else list(zip(found.numbers, found.steps, strict=True))


@pytest.mark.parametrize("name", LOGS)
@given(share=st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_a_log_that_is_cut_anywhere_has_the_first_steps_of_the_whole_one(place, name, share):
    whole = LOGS[name](1, 6).encode()
    found, every = steps_in(place, whole[: round(share * len(whole))]), steps_in(place, whole)
    assert found == every[: len(found)]


@pytest.mark.parametrize("name", LOGS)
def test_numbers_are_those_that_the_console_prints(place, name):
    assert [number for number, _ in steps_in(place, LOGS[name](7, 5))][:4] == [7, 8, 9, 10]


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("first", [1, 5])
def test_of_a_run_that_was_started_again_its_last_start_alone_counts(place, name, first):
    of = LOGS[name]
    alone = steps_in(place, of(first, 4, seconds=20.0))
    assert alone
    assert steps_in(place, of(1, 8) + "Traceback: killed\n" + of(first, 4, seconds=20.0)) == alone


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize(
    "spoilt",
    [
        lambda data: data.replace(b"\n", b" \xff\xe2\n", 3),
        lambda data: b"\0" * 4096 + data,
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data + "今".encode()[:2],
    ],
    ids=["no text", "emptied", "mark", "carriage returns", "half a character"],
)
def test_bytes_that_are_no_text_hide_no_step(place, name, spoilt):
    data = LOGS[name](1, 6).encode()
    assert steps_in(place, spoilt(data)) == steps_in(place, data)


def test_one_figure_of_several_runs_is_refused_by_their_names(place):
    place.write_text('"Step","old - timing_s/step","new - timing_s/step"\n"1","80.0","50.0"\n')
    with pytest.raises(FileError, match="several runs: old, new"):
        followed(place)


def test_a_log_that_is_moved_away_is_taken_up_where_it_is_there_again(tmp_path):
    log, said = tmp_path / "train.log", []
    log.write_text(verl(1, 4))
    deeds = iter(
        [
            lambda: log.rename(tmp_path / "train.log.1"),
            lambda: None,
            lambda: log.write_text(verl(5, 2)),
            lambda: log.write_text(verl(5, 4)),
        ]
    )

    def wait():
        next(deeds)()

    found = states_of(log, wait, Silence(said.append))
    numbers = [next(found).numbers for _ in range(3)]
    assert numbers == [(1, 2, 3, 4), (5, 6), (5, 6, 7, 8)]
    assert not said


def test_a_log_that_stands_still_is_said_once_and_again_behind_its_next_step(tmp_path):
    log, said, now = tmp_path / "train.log", [], [0.0]
    silence = Silence(said.append, lambda: now[0])
    log.write_text(verl(1, 3))
    silence.note(followed(log))
    for seconds in (SILENT_SECONDS, 10 * 83.0, 10 * 83.0 + 1, 5000.0):
        now[0] = seconds
        silence.look()
    assert [words.split(":")[0] for words in said] == ["no step after the last of 3 for 14 min"]
    log.write_text(verl(1, 4))
    silence.note(followed(log))
    now[0] = 6000.0
    silence.look()
    assert len(said) == 2
