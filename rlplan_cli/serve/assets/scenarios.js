// Scenarios side by side: the first is what the others are compared with.

import { byId, change, el, gib, percent, seconds, table, usd, whole } from "./words.js";
import { fullest } from "./draw.js";

const MOST = 6;
const ROWS = [
  ["Verdict", (each) => each.verdict, null],
  ["Fullest GPU", (each) => gib(each.peak_bytes), "peak_bytes"],
  ["Memory taken", (each) => percent(each.peak_bytes / each.capacity_bytes), null],
  ["A step", (each) => seconds(each.step_seconds), "step_seconds"],
  ["p10", (each) => seconds(each.low_seconds), null],
  ["p90", (each) => seconds(each.high_seconds), null],
  ["tokens/s/GPU", (each) => whole(each.rate), "rate"],
  ["Price of a step", (each) => usd(each.cost_usd), "cost_usd"],
  ["Price of an hour", (each) => usd(each.usd_per_hour), "usd_per_hour"],
  ["GPUs", (each) => whole(each.gpus), "gpus"],
];
// Of which more is better.
const MORE = new Set(["rate"]);

export function figuresOf(answer) {
  const { check, view } = answer;
  const full = fullest(check.step);
  if (!view || !full) return null;
  return {
    verdict: check.memory, peak_bytes: full.peak_bytes, capacity_bytes: full.capacity_bytes, step_seconds: check.step.step_seconds,
    low_seconds: check.step.interval_seconds[0], high_seconds: check.step.interval_seconds[1], rate: view.tokens_per_second_per_gpu,
    cost_usd: check.step.cost_usd, usd_per_hour: view.usd_per_hour, gpus: view.gpus,
  };
}

export function nameOf(state, answer) {
  const view = answer.view;
  const device = view?.layouts[0]?.device ?? state.gpu;
  const size = `${whole(view?.gpus ?? state.gpus)} × ${device.replace(/-.*/, "")}`;
  return state.script ? `${state.script.name}, ${size}` : `${state.model}, ${size}, ${whole(state.response_tokens)} tokens${state.mode === "sync" ? "" : `, ${state.mode}`}`;
}

export function drawScenarios(pins, now, restore, remove) {
  byId("pin").disabled = pins.length >= MOST;
  if (!pins.length) {
    byId("scenarios").replaceChildren();
    return;
  }
  const columns = [...pins, ...(now ? [{ name: "now", figures: now }] : [])];
  const [first] = columns;
  const rows = ROWS.map(([title, words, name]) => [el("b", {}, title), ...columns.map((each) => {
    const differs = name && each !== first ? change(each.figures[name], first.figures[name]) : "";
    const less = differs.startsWith("−") !== MORE.has(name);
    const shown = differs && differs !== "same" ? el("small", { class: name === "gpus" ? null : less ? "less" : "more" }, differs) : null;
    return [words(each.figures), shown].filter(Boolean);
  })]);
  rows.push([el("b", {}, ""), ...columns.map((each, place) => (place < pins.length
    ? [button("Restore", `Restore ${each.name}`, () => restore(each)), button("Remove", `Remove ${each.name}`, () => remove(each))]
    : ""))]);
  byId("scenarios").replaceChildren(table(["", ...columns.map((each) => `#${each.name}`)], rows));
}

function button(words, label, act) {
  return el("button", { type: "button", class: "quiet", "aria-label": label, onclick: act }, words);
}
