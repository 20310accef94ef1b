"""A watched step in a line, and as a file that Prometheus collects."""

from collections.abc import Iterator, Sequence

from rlplan.results.measurement import WatchedStep
from rlplan.units import show_seconds


def watched_words(found: WatchedStep) -> str:
    """Return a step: `step 12: measured 45.20 s, forecast 44.10 s (38.00 s to 51.00 s): within; furthest: generation ...`."""
    low, high = map(show_seconds, found.interval_seconds)
    measured, forecast = show_seconds(found.measured_seconds), show_seconds(found.forecast_seconds)
    words = f"step {found.step:,}: measured {measured}, forecast {forecast} ({low} to {high}): {found.place}"
    if found.starts:
        words += ", the first of a start"
    if found.response_tokens is not None:
        words += f"; {found.response_tokens:,.0f} response tokens"
    far = found.furthest
    if far is not None:
        took, expected = show_seconds(far.measured_seconds), show_seconds(far.forecast_seconds)
        words += f"; furthest: {far.name} {took} (forecast {expected})"
    return words


def prometheus_text(found: WatchedStep, log: str) -> str:
    """Return the newest step as gauges in Prometheus' text format, which node_exporter's textfile collector reads.

    Args:
        log: Of which log it is, for a label.

    The format is that of prometheus.io, "Exposition formats": a line of help and of the type for each metric, labels in
    quotes with backslashes, quotes and line ends escaped, a line end at the last line.
    """
    low, high = found.interval_seconds
    own: tuple[tuple[str, str, float], ...] = (
        ("step", "Number of the newest step in the log.", found.step),
        ("step_measured_seconds", "What the newest step took.", found.measured_seconds),
        ("step_forecast_seconds", "What was forecast at its lengths.", found.forecast_seconds),
        ("step_forecast_p10_seconds", "Low end of the forecast.", low),
        ("step_forecast_p90_seconds", "High end of the forecast.", high),
        ("step_within_forecast", "1 where it lies between both ends.", found.place == "within"),
    )
    lines = [
        line
        for name, text, value in own
        for line in _metric(name, text, [((("log", log),), value)])
    ]
    for name, text, values in (
        (
            "stage_measured_seconds",
            "What a stage of the newest step took.",
            [(each.name, each.measured_seconds) for each in found.stages],
        ),
        (
            "stage_forecast_seconds",
            "What was forecast of the stage.",
            [(each.name, each.forecast_seconds) for each in found.stages],
        ),
    ):
        rows = [((("log", log), ("stage", stage)), value) for stage, value in values]
        lines += _metric(name, text, rows) if rows else []
    return "\n".join(lines) + "\n"


Labels = tuple[tuple[str, str], ...]


def _metric(name: str, text: str, rows: Sequence[tuple[Labels, float]]) -> Iterator[str]:
    yield f"# HELP rlplan_{name} {text}"
    yield f"# TYPE rlplan_{name} gauge"
    for labels, value in rows:
        told = ",".join(f'{label}="{_label(held)}"' for label, held in labels)
        yield f"rlplan_{name}{{{told}}} {float(value)!r}"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
