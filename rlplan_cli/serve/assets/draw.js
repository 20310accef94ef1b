// The answer, drawn from numbers: tiles, memory by term, the step's timeline, a row for each task, what to know of it.
// `take` is called with a proposal's words where the script is to have them; null where there is no script.

import { byId, copy, el, figures, gib, gpus, interval, percent, seconds, table, usd, whole } from "./words.js";

const MANY_SPANS = 80;
let colours = [];
let activities = {};
const ofTask = new Map();
const ofTerm = new Map();

export function setColours(catalog) {
  colours = catalog.colours;
  activities = catalog.activity_colours;
}

function colourOf(known, name) {
  if (!known.has(name)) known.set(name, colours[known.size % colours.length]);
  return known.get(name);
}

// White or dark letters, whichever is read better on a colour.
function ink(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return (light + 0.05) / 0.055 > 1.05 / (light + 0.05) ? "#0b0d12" : "#ffffff";
}

// What answers are called, and what they are.
const STAGES = {
  quick: ["quick estimate", "A plan without a search, costed and simulated, on fewer samples where they are handed on one by one; the answer of rlplan check follows"],
  first: ["first plan", "What a search had found when it had hardly begun, simulated; the answer of rlplan check follows"],
  simulated: ["simulated", "What rlplan check says, with its search for what is left open"],
};

export function drawAnswer(answer, state, take) {
  const { check, view, stage } = answer;
  const badge = byId("stage");
  [badge.textContent, badge.title] = STAGES[stage];
  badge.className = `stage ${stage}`;
  byId("what").textContent = what(answer);
  drawVerdict(check, stage);
  byId("tiles").replaceChildren(...tiles(answer, state));
  byId("memory").replaceChildren(...(check.step ? memory(check.step) : []));
  byId("timeline").replaceChildren(...(view ? timeline(view) : []));
  byId("tasks").replaceChildren(...(view ? [tasks(check.step, view)] : []));
  if (stage === "simulated") byId("notes").replaceChildren(...notes(answer, take));
  byId("command").textContent = answer.command || byId("command").textContent;
  byId("job-download").hidden = !answer.job_text && byId("job-download").hidden;
}

function what({ view, framework, stage, gap }) {
  if (!view) return "";
  const mode = view.mode === "sync" ? "" : `, ${view.mode}`;
  const more = stage === "first" && gap ? `; still searching, others may take up to ${Math.ceil(100 * gap)} % less` : "";
  return `${view.placement} on ${gpus(view.gpus)}${mode}${framework ? `, ${framework}` : ""}${more}`;
}

function fullest(step) {
  return step?.memory.reduce((most, each) => (!most || each.peak_bytes / each.capacity_bytes > most.peak_bytes / most.capacity_bytes ? each : most), null);
}

function drawVerdict(check, stage) {
  const full = fullest(check.step);
  const filled = full ? `: ${gib(full.peak_bytes)} of ${gib(full.capacity_bytes)} (${percent(full.peak_bytes / full.capacity_bytes)}), during ${full.during}` : "";
  const stops = check.findings.filter((each) => each.stops).length;
  let words = { fits: "Fits", "may not fit": "May not fit", "does not fit": "Does not fit", "not known": "Memory is not known" }[check.memory] ?? check.memory;
  if (stage === "quick" && check.memory !== "fits") words = "This layout may not fit; looking for one that does";
  if (stops) words = `Will not run: ${stops} ${stops > 1 ? "rules" : "rule"} broken. ${words}`;
  const verdict = byId("verdict");
  verdict.className = `verdict ${stops || (check.memory === "does not fit" && stage !== "quick") ? "bad" : check.memory === "fits" ? "good" : "doubt"}`;
  verdict.textContent = `${words}${filled}`;
  const mini = byId("mini");
  mini.className = `mini ${verdict.className.replace("verdict", "")}`;
  mini.textContent = [words, full ? percent(full.peak_bytes / full.capacity_bytes) : "", check.step ? seconds(check.step.step_seconds) : "", check.step ? usd(check.step.cost_usd) : ""].filter(Boolean).join(" · ");
}

function tile(name, value, note, kind) {
  return el("div", {}, el("dt", {}, name), el("dd", { class: kind ?? null }, value), el("dd", { class: "note" }, note ?? "\u00a0"));
}

function tiles({ check, view }, state) {
  const step = check.step;
  if (!step || !view) return [tile("A step", "–", "no forecast could be made")];
  const [low, high] = step.interval_seconds;
  const steps = check.steps ?? state.steps;
  const runSeconds = steps * step.step_seconds;
  const runUsd = steps * step.cost_usd;
  const found = [
    tile("A step", seconds(step.step_seconds), `p10 to p90: ${interval([low, high])}`),
    tile("Rate", whole(view.tokens_per_second_per_gpu), "tokens/s/GPU"),
    tile("Price of a step", usd(step.cost_usd), `${usd(view.usd_per_hour)} an hour, ${gpus(view.gpus)}`),
    tile(`Run of ${whole(steps)} steps`, seconds(runSeconds), `${usd(runUsd)}${check.steps ? ", steps as the script says" : ""}`),
  ];
  // Limits are judged at p90, as rlplan check --budget-usd and --max-days do; money is paid by the second.
  const highUsd = (step.cost_usd * high) / step.step_seconds;
  if (state.budget_usd !== null) found.push(budget("Budget", usd(state.budget_usd), state.budget_usd / highUsd, steps));
  if (state.budget_days !== null) found.push(budget("Deadline", `${figures(state.budget_days)} days`, (state.budget_days * 86400) / high, steps));
  return found;
}

function budget(name, words, bought, steps) {
  const kept = bought >= steps;
  return tile(`${name}: ${words}`, kept ? "kept" : "not kept", `${whole(Math.floor(bought))} steps at p90`, kept ? "kept" : "broken");
}

function memory(step) {
  const found = [];
  const said = el("p", { class: "said" }, "Point at a part, or walk through them by Tab");
  const list = el("ul", { class: "terms" });
  for (const pool of step.memory) {
    const scale = Math.max(pool.peak_bytes, pool.capacity_bytes) * 1.02;
    const over = pool.peak_bytes > pool.capacity_bytes;
    found.push(el("p", { class: "row-name" },
      el("b", {}, `pool ${pool.pool}`, el("span", {}, `, during ${pool.during}`)),
      el("span", { class: over ? "bad" : null }, `${gib(pool.peak_bytes)} of ${gib(pool.capacity_bytes)}, ${over ? `${gib(pool.peak_bytes - pool.capacity_bytes)} too much` : `${gib(pool.capacity_bytes - pool.peak_bytes)} free`}`)));
    const stack = el("div", { class: "stack", role: "group", "aria-label": `Memory of pool ${pool.pool}` });
    let begin = 0;
    const terms = Object.entries(pool.terms).filter(([, size]) => size > 0).sort((one, other) => other[1] - one[1]);
    if (step.memory.length > 1) list.append(el("li", { class: "head" }, `pool ${pool.pool}`));
    for (const [name, size] of terms) {
      const colour = colourOf(ofTerm, name);
      const words = `${name}: ${gib(size)}, ${percent(size / pool.peak_bytes)} of the peak`;
      const tell = () => { said.textContent = words; };
      stack.append(el("button", { type: "button", "aria-label": words, title: words, onpointerenter: tell, onfocus: tell, style: { left: `${(100 * begin) / scale}%`, width: `${(100 * size) / scale}%`, background: colour } }));
      begin += size;
      list.append(el("li", {}, el("i", { style: { background: colour } }), name, el("b", {}, gib(size))));
    }
    stack.append(el("b", { class: "capacity", style: { left: `${(100 * pool.capacity_bytes) / scale}%` }, title: `${gib(pool.capacity_bytes)} there are` }));
    found.push(stack);
  }
  return [...found, said, list];
}

function timeline(view) {
  const said = el("p", { class: "said" }, "Point at a task, or walk through them by Tab");
  const tracks = el("div", { class: "timeline-tracks", role: "group", "aria-label": "Timeline of a step" });
  const pools = [...new Set(view.spans.map((each) => each.pool))];
  const whole = view.iteration_seconds || 1;
  const many = view.spans.length > MANY_SPANS;
  for (const pool of pools) {
    const track = el("div", { class: "track" });
    for (const span of view.spans.filter((each) => each.pool === pool)) {
      const colour = span.activity === "task" ? colourOf(ofTask, span.name) : activities[span.activity] ?? "#8d95a3";
      const words = `${span.name}: ${seconds(span.end_seconds - span.start_seconds)}, from ${seconds(span.start_seconds)}${span.current ? "" : ", of another iteration"}`;
      const tell = () => { said.textContent = words; };
      track.append(el("button", {
        type: "button", class: `bar${span.current ? "" : " hatched"}`, "aria-label": words, title: words, tabindex: many ? "-1" : null, onpointerenter: tell, onfocus: tell,
        style: { left: `${(100 * span.start_seconds) / whole}%`, width: `${(100 * (span.end_seconds - span.start_seconds)) / whole}%`, backgroundColor: colour, color: ink(colour) },
      }, el("span", {}, span.name)));
    }
    tracks.append(el("p", { class: "track-name" }, pool), track);
  }
  const axis = el("div", { class: "axis", "aria-hidden": "true" });
  for (let part = 0; part <= 4; part += 1) axis.append(el("span", { style: { left: `${25 * part}%` } }, part ? seconds((whole * part) / 4) : "0 s"));
  tracks.append(axis);
  return [tracks, said];
}

function tasks(step, view) {
  const layouts = new Map(view.layouts.map((each) => [each.task, each]));
  // Sizes that are 1 everywhere, and what nothing says, have no column.
  const sizes = ["tp", "pp", "dp", "cp", "ep"].filter((name) => ["tp", "pp", "dp"].includes(name) || view.layouts.some((each) => each[name] > 1));
  const again = view.layouts.some((each) => each.recompute && each.recompute !== "none");
  // Where all tasks have all GPUs, the line above says how many.
  const apart = view.layouts.some((each) => each.gpus !== view.gpus);
  const rows = step.tasks.filter((each) => each.seconds > 0 && !each.name.startsWith("transfer:")).map((each) => {
    const layout = layouts.get(each.name);
    return [each.name, ...(apart ? [layout ? String(layout.gpus) : ""] : []), ...sizes.map((name) => (layout ? String(layout[name]) : "")), layout?.batch ?? "",
      ...(again ? [layout?.recompute && layout.recompute !== "none" ? layout.recompute : ""] : []), seconds(each.seconds), interval(each.interval_seconds),
      layout?.mfu_fraction ? percent(layout.mfu_fraction) : "", el("span", { class: `source ${each.source}` }, each.source)];
  });
  return table(["Task", ...(apart ? ["#GPUs"] : []), ...sizes.map((name) => `#${name.toUpperCase()}`), "#Batch", ...(again ? ["Recompute"] : []), "#Time", "#p10 to p90", "#MFU", "Known by"], rows);
}

function notes(answer, take) {
  const { check, view } = answer;
  const step = check.step;
  const found = [];
  if (check.findings.length) {
    found.push(el("h3", {}, "Rules of the framework"), el("ul", {}, check.findings.map((each) => el("li", { class: each.stops ? "look" : null },
      `${each.stops ? "Stops" : "Look at"}: ${each.key}${each.value === null ? "" : `=${each.value}`}: ${each.problem}${each.allowed ? `; allowed: ${each.allowed}` : ""} (${each.where})`))));
  }
  if (step?.reasons.length) found.push(el("h3", {}, "Why it does not fit"), el("ul", {}, [...step.reasons, ...(check.better.length ? [] : ["no change of up to three settings that was tried makes it fit; a search looks at all plans"])].map((each) => el("li", {}, each))));
  if (check.better.length) found.push(el("h3", {}, step?.fits ? "What would be faster" : "What would fit"), better(check.better, take));
  const groups = [
    ["Beside the tasks", step?.effects ?? [], true], ["Doubtful", check.doubtful, true], ["Look at", check.remarks, true], ["Not understood, and not counted", check.not_understood, false],
    ["May be off", [...(step?.may_be_off ?? []), ...(view?.least_certain ? [view.least_certain] : [])], true],
    ["Assumed", [...new Set([...check.assumed, ...(step?.assumed ?? [])])], false],
    ["Where the numbers are from", sources(view), false],
  ];
  for (const [title, lines, open] of groups) {
    if (lines.length) found.push(el("details", { open }, el("summary", {}, `${title} (${lines.length})`), el("ul", {}, lines.map((each) => el("li", {}, each)))));
  }
  return found;
}

function sources(view) {
  if (!view) return [];
  return [`costs: ${view.costs_from}`, ...Object.entries(view.sources).map(([name, each]) => `${name}: ${each.join(", ")}`)];
}

// A key that may go on in the next line behind its dots.
function broken(word) {
  return word.split(/(?<=[.=])/).flatMap((part) => [part, el("wbr")]);
}

function better(changes, take) {
  const rows = changes.map((each) => {
    const copies = el("button", { type: "button", class: "quiet", "aria-label": `Copy ${each.words}` }, "Copy");
    copies.addEventListener("click", () => copy(each.arguments.join(" ") || each.words, copies));
    const takes = take && each.arguments.length ? el("button", { type: "button", class: "quiet", "aria-label": `Use ${each.words} in the script` }, "Use it") : null;
    takes?.addEventListener("click", () => take(each.arguments));
    const keys = each.arguments.length ? each.arguments : [each.words];
    return [el("div", { class: "keys" }, keys.map((word) => el("code", {}, broken(word))), takes, copies), seconds(each.step_seconds), `${each.gain < 0 ? "+" : "−"}${percent(Math.abs(each.gain), 1)}`,
      percent(each.memory_fraction)];
  });
  return el("div", { class: "scroll" }, table(["Setting", "#A step", "#Change", "#Memory"], rows));
}

export { fullest };
