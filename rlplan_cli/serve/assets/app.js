// The page: controls change a state, the state is asked of the server, the newest answer is drawn.

import { ask, catalog as askCatalog, nextSequence, search as askSearch } from "./ask.js";
import { makeControls } from "./controls.js";
import { drawAnswer, setColours } from "./draw.js";
import { drawScenarios, figuresOf, nameOf } from "./scenarios.js";
import { USUAL, asked, fromFragment, toFragment } from "./state.js";
import { byId, copy, download, el, gpus, percent, seconds, table, usd, whole } from "./words.js";

// A pause after which the whole answer is asked for; quick ones come while a slider moves.
const PAUSE = 200;
// Answers of one question, the last one counts.
const [QUICK, FIRST, WHOLE] = [0, 1, 2];
// Modes whose whole answers take seconds: a first plan comes before.
const BY_SAMPLE = ["streaming", "async"];
const LARGEST = 2 ** 20;
const OTHER_SETTINGS = "found for other settings than these";
const LOGS = /\.(log|txt|csv|jsonl)$/i;

let state = structuredClone(USUAL);
let pins = [];
let script = null;
// What is drawn: of which question, and how much of an answer it is.
let shown = { number: 0, rank: 0 };
let last = null;
let whole_ = null;
let answered = "";
let controls;
let names;
let timer = 0;
let leaving = new AbortController();
let isQuick = false;
let waiting = 0;
let newest = 0;

function change(name, value) {
  if (state.script && script?.keys?.[name]) state.changes = { ...state.changes, [name]: value };
  else state = { ...state, [name]: value };
  if (name === "gpu") fitNodes();
  if (["steps", "budget_usd", "budget_days"].includes(name)) {
    show();
    if (last) drawAnswer(last, state, taking());
    return;
  }
  show();
  askAll();
}

// What puts a proposal's words into the script.
function taking() {
  return state.script ? take : null;
}

// Controls that were moved before go into the words as well: they count more than these where both name a key.
function take(words) {
  const unanswered = Object.entries(state.changes).filter(([name, value]) => script.controls[name] !== value);
  state = { ...state, taken: [...script.words, ...words], changes: Object.fromEntries(unanswered) };
  show();
  askAll(0);
}

// GPUs fill whole nodes of the device that was chosen.
function fitNodes() {
  const node = names.devices[state.gpu]?.gpus_per_node ?? 8;
  if (!state.script && state.gpus > node) state.gpus = Math.max(1, Math.round(state.gpus / node)) * node;
}

function show() {
  controls.show(state, script);
  byId("script-none").hidden = Boolean(state.script);
  byId("script-some").hidden = !state.script;
  byId("fitting").hidden = Boolean(state.script);
  if (!state.script) return;
  byId("script-as").value = state.script_framework;
  byId("script-name").textContent = state.script.name;
  byId("script-framework").textContent = script?.framework ? `read as ${script.framework}` : "";
  const changed = Object.keys(state.changes).length > 0 || state.taken.length > 0;
  byId("script-undo").hidden = !changed;
  byId("script-copy").hidden = !(changed && script?.words?.length);
  byId("script-download").hidden = !(changed && script?.script_text);
  byId("script-words").hidden = byId("script-copy").hidden;
  byId("script-words").textContent = (script?.words ?? []).join(" ");
}

function askAll(delay = PAUSE) {
  const number = nextSequence();
  newest = number;
  busy(true);
  if (byId("placements").firstChild) outdated();
  if (byId("log").firstChild) logOutdated();
  quick(number);
  clearTimeout(timer);
  timer = setTimeout(() => wholeAnswer(number), delay);
  return number;
}

// One quick question at a time; the newest state waits for its reply.
async function quick(number) {
  waiting = number;
  if (isQuick) return;
  isQuick = true;
  while (waiting) {
    const current = waiting;
    waiting = 0;
    const found = await ask("quick", asked(state), current);
    if (found?.answer && (current > shown.number || (current === shown.number && shown.rank === QUICK))) draw(found.answer, current, QUICK);
  }
  isQuick = false;
}

async function wholeAnswer(number) {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  await firstAnswer(number, signal);
  if (number !== newest) return;
  const found = await ask("answer", asked(state), number, signal);
  // What an older question is answered with is no longer of the controls; the newer one's reply is under way.
  if (!found || number !== newest) return;
  if (found.answer) {
    complain([]);
    draw(found.answer, number, WHOLE);
  } else if (found.mistakes.length) {
    shown = { number, rank: WHOLE };
    whole_ = null;
    complain(found.mistakes);
  }
  busy(false);
}

// The first plan of a search; what is wrong is left to the whole answer.
async function firstAnswer(number, signal) {
  if (state.script || !BY_SAMPLE.includes(state.mode)) return;
  const found = await ask("first", asked(state), number, signal);
  if (found?.answer && number === newest) draw(found.answer, number, FIRST);
}

// Shown as paler figures, and said to screen readers.
function busy(on) {
  document.body.classList.toggle("busy", on);
  byId("answer").setAttribute("aria-busy", String(on));
}

function draw(answer, number, rank) {
  shown = { number, rank };
  last = answer;
  if (rank === WHOLE) {
    whole_ = answer;
    answered = scriptText();
    if (state.script) script = { ...answer, controls: answer.controls ?? {}, keys: answer.keys ?? {} };
    show();
  }
  drawAnswer(answer, state, taking());
  scenarios();
}

// Says mistakes beside the fields that they are about, others below the verdict.
const FIELDS = [
  [/models|model/, "model"], [/mean_response|mean-response/, "mean_share"], [/response_tokens/, "response_tokens"], [/prompt_tokens/, "prompt_tokens"],
  [/samples/, "samples_per_prompt"], [/prompts|updates/, "prompts"], [/gpus|nodes|cluster/, "gpus"], [/algorithm/, "algorithm"], [/framework/, "framework"],
  [/rollout_precision/, "rollout_precision"], [/precision/, "precision"], [/staleness/, "staleness"], [/mode/, "mode"], [/--gpu|gpu/, "gpu"],
];

function complain(mistakes) {
  const wrong = {};
  const others = [];
  for (const each of mistakes) {
    const about = `${each.argument ?? ""} ${each.field ?? ""}`;
    const name = state.script && !/--/.test(each.message) ? null : FIELDS.find(([pattern]) => pattern.test(about))?.[1];
    if (name && !controls.fields[name].node.hidden) wrong[name] = short(each);
    else others.push(each.message);
  }
  controls.mark(wrong);
  byId("error-answer").textContent = others.join("\n");
  // What stood here of another script, or of the controls, is no answer to this one; of the same it is an earlier one.
  const same = answered === scriptText();
  byId("answer").classList.toggle("unanswered", mistakes.length > 0 && !same);
  byId("answer").classList.toggle("earlier", mistakes.length > 0 && same);
  if (!mistakes.length) return;
  const badge = byId("stage");
  badge.className = "stage failed";
  badge.textContent = "no answer";
  byId("verdict").className = "verdict bad";
  byId("verdict").textContent = Object.keys(wrong).length ? "There is a mistake beside a field" : "It cannot be answered as it stands";
}

function scriptText() {
  return state.script?.text ?? "";
}

function short(each) {
  return [each.problem, each.value === null || each.value === undefined ? "" : `found ${String(each.value).slice(0, 80)}`, each.allowed ? `allowed: ${each.allowed}` : "", each.hint ?? ""].filter(Boolean).join("; ");
}

function scenarios() {
  drawScenarios(pins, last ? figuresOf(last) : null, (pin) => {
    state = { ...structuredClone(USUAL), ...pin.state };
    script = null;
    show();
    askAll(0);
  }, (pin) => {
    pins = pins.filter((each) => each !== pin);
    scenarios();
  });
}

// ---------------------------------------------------------------------------- files

async function takeFile(file, asLog) {
  if (file.size > LARGEST) return say(asLog ? "log" : "script", `${file.name} is larger than 1 MiB`);
  const text = await file.text();
  return asLog ? checkLog({ name: file.name, text }) : takeScript({ name: file.name, text });
}

function say(where, words) {
  byId(`error-${where}`).textContent = words;
}

function takeScript(given) {
  say("script", given.text.trim() ? "" : "it is empty");
  if (!given.text.trim()) return;
  state = { ...state, script: given, script_framework: "", changes: {}, taken: [] };
  script = null;
  forget();
  show();
  askAll(0);
}

// What was found for another script, or for the controls, is none of this one's.
function forget() {
  searching?.abort();
  for (const id of ["placements", "log"]) byId(id).replaceChildren();
  for (const id of ["search-told", "log-told", "error-search", "error-log"]) byId(id).textContent = "";
  byId("export").hidden = true;
}

function leaveScript() {
  state = { ...state, script: null, changes: {}, taken: [] };
  script = null;
  say("script", "");
  forget();
  show();
  askAll(0);
}

async function checkLog(log) {
  say("log", "");
  if (!whole_?.plan) return say("log", "there is no forecast yet to lay it beside");
  byId("log-told").textContent = `reading ${log.name}`;
  const found = await ask("check_step", { log, plan: whole_.plan });
  byId("log-told").textContent = "";
  if (!found) return;
  if (!found.answer) return say("log", found.mistakes.map((each) => each.message).join("\n"));
  const answer = found.answer;
  byId("log-told").textContent = `${answer.verdict}: ${whole(answer.steps)} steps of ${answer.source}, ${log.name}`;
  const rows = [...answer.stages, ...(answer.step ? [answer.step] : [])].map((each) => ({
    strong: each === answer.step,
    cells: [each.name, seconds(each.measured_seconds), seconds(each.forecast_seconds), `${seconds(each.normal_seconds[0])} to ${seconds(each.normal_seconds[1])}`,
      el("span", { class: `verdict-${each.verdict}` }, each.verdict), [...each.causes, ...each.tries.map((one) => `try: ${one}`)].join("; ")],
  }));
  const more = answer.notes.map((each) => el("li", {}, each));
  byId("log").classList.remove("outdated");
  byId("log").replaceChildren(table(["Stage", "#Measured", "#Forecast", "#Normal", "Verdict", "Likely"], rows), el("ul", {}, more));
}

// ---------------------------------------------------------------------------- search and export

let searching = null;
let chosen = null;

async function search() {
  say("search", "");
  searching = new AbortController();
  const began = newest;
  toggleSearch(true);
  byId("search-told").textContent = "searching";
  const limit = Math.max(1, Number(byId("search-seconds").value) || 30);
  const found = await askSearch({ ...asked(state), seconds: limit }, ({ done, total, what }) => {
    byId("search-progress").max = total;
    byId("search-progress").value = done;
    byId("search-told").textContent = what;
  }, searching.signal);
  toggleSearch(false);
  byId("search-told").textContent = "";
  if (!found) {
    byId("search-told").textContent = began === newest ? "stopped" : "";
    return;
  }
  if (!found.answer) return say("search", found.mistakes.map((each) => each.message).join("\n"));
  placements(found.answer);
  if (began !== newest) outdated();
}

function logOutdated() {
  byId("log").classList.add("outdated");
  byId("log-told").textContent = `beside the forecast of other settings than these: open the log again`;
}

function outdated() {
  byId("placements").classList.add("outdated");
  byId("search-told").textContent = OTHER_SETTINGS;
}

function toggleSearch(on) {
  byId("search").disabled = on;
  byId("search-stop").hidden = !on;
  byId("search-progress").hidden = !on;
  byId("search-progress").value = 0;
}

function placements(found) {
  byId("placements").classList.remove("outdated");
  const proof = found.gap <= 0 ? "proven best under the cost model" : `at most ${percent(found.gap, 2)} from the best`;
  byId("search-told").textContent = `${proof}; best of ${found.space}; ${seconds(found.search_seconds)}`;
  const mine = whole_?.check.step;
  const rows = [];
  if (mine && !found.plans.some((each) => each.is_own)) rows.push({ strong: true, cells: row(`yours: ${whole_.view.placement}`, mine, whole_.view, mine, "") });
  for (const each of found.plans) {
    const use = el("button", { type: "button", class: "quiet", "aria-label": `Use ${each.placement}` }, "Use this");
    use.addEventListener("click", () => choose(each));
    rows.push({ cells: row(each.placement + (each.is_own ? " (yours)" : ""), each.step, each.view, mine, use) });
  }
  byId("placements").replaceChildren(table(["Placement", "#GPUs", "#A step", "#Against yours", "#Memory", "#USD a step", ""], rows));
}

function row(name, step, view, mine, use) {
  const full = Math.max(...step.memory.map((each) => each.peak_bytes / each.capacity_bytes));
  const layouts = view.layouts.map((each) => `${each.task.split(".").pop()} ${each.tp}·${each.pp}·${each.dp}`);
  const share = mine ? step.step_seconds / mine.step_seconds - 1 : 0;
  const against = !mine || step === mine ? "" : Math.abs(share) < 0.0005 ? "same" : `${share > 0 ? "+" : "−"}${percent(Math.abs(share), 1)}`;
  return [el("div", { class: "placed" }, name, el("small", {}, `TP·PP·DP: ${layouts.join(", ")}`)), whole(view.gpus), seconds(step.step_seconds), against, percent(full), usd(step.cost_usd), use];
}

function choose(found) {
  chosen = { plan: found.plan, placement: found.placement, exported: null };
  byId("export").hidden = false;
  byId("export-title").textContent = `As a script: ${found.placement}`;
  exportPlan();
}

async function exportPlan() {
  const to = byId("export-to").value;
  say("export", "");
  byId("export-text").textContent = "";
  byId("export-notes").replaceChildren();
  for (const id of ["export-use", "export-keys"]) byId(id).hidden = true;
  const found = await ask("export", { ...asked(state), plan: chosen.plan, to });
  if (!found) return;
  if (!found.answer) return say("export", found.mistakes.map((each) => each.message).join("\n"));
  chosen.exported = found.answer;
  byId("export-text").textContent = found.answer.text;
  for (const id of ["export-use", "export-keys"]) byId(id).hidden = !found.answer.words.length;
  byId("export-notes").replaceChildren(...found.answer.notes.map((each) => el("li", {}, each)),
    ...Object.entries(found.answer.variables).filter(([, value]) => value === null).map(([name]) => el("li", {}, `to be set: ${name}`)));
}

async function fit() {
  say("fit", "");
  byId("fit").disabled = true;
  byId("fit-told").textContent = "looking, it takes some seconds";
  const found = await ask("fit", asked(state));
  byId("fit").disabled = false;
  byId("fit-told").textContent = "";
  if (!found) return;
  if (!found.answer) return say("fit", found.mistakes.map((each) => each.message).join("\n"));
  const { longest_response_tokens: most, fewest_gpus: fewest } = found.answer;
  byId("fit-told").textContent = `longest response that fits on ${gpus(state.gpus)}: ${most ? `${whole(most)} tokens` : "none of 1,024 tokens or more"}; smallest cluster that fits: ${fewest ? gpus(fewest) : "none of up to 64 nodes"} (as rlplan fit: its usual batch, all responses as long as the longest)`;
}

// ---------------------------------------------------------------------------- wiring

function on(id, act, kind = "click") {
  byId(id).addEventListener(kind, act);
}

function wire() {
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  on("paste-open", () => {
    byId("paste").hidden = !byId("paste").hidden;
    byId("paste-open").setAttribute("aria-expanded", String(!byId("paste").hidden));
    if (!byId("paste").hidden) byId("script-text").focus();
  });
  on("paste-take", () => takeScript({ name: nameOfText(byId("script-text").value), text: byId("script-text").value }));
  for (const [id, asLog] of [["script-file", false], ["log-file", true]]) {
    on(id, (event) => {
      const [file] = event.target.files;
      if (file) takeFile(file, asLog);
      event.target.value = "";
    }, "change");
  }
  on("script-remove", leaveScript);
  on("script-as", (event) => { state = { ...state, script_framework: event.target.value }; askAll(0); }, "input");
  on("script-undo", () => { state = { ...state, changes: {}, taken: [] }; show(); askAll(0); });
  on("script-copy", (event) => copy(script.words.join(" "), event.currentTarget));
  on("script-download", () => download(state.script.name, script.script_text));
  on("command-copy", (event) => copy(byId("command").textContent, event.currentTarget));
  on("job-download", () => whole_?.job_text && download(whole_.command.split(" ").pop(), whole_.job_text));
  on("search", search);
  on("search-stop", () => searching?.abort());
  on("export-to", exportPlan, "input");
  on("export-copy", (event) => chosen?.exported && copy(chosen.exported.text, event.currentTarget));
  on("export-use", () => take(chosen.exported.words));
  on("export-keys", (event) => copy(chosen.exported.words.join(" "), event.currentTarget));
  on("export-download", () => chosen?.exported && download(nameOfExport(chosen.exported.text), chosen.exported.text));
  on("export-plan", () => chosen?.exported && download("plan.yaml", chosen.exported.plan_text));
  on("fit", fit);
  on("pin", () => {
    const figures = last && figuresOf(last);
    if (!figures) return;
    pins = [...pins, { name: nameOf(state, last), figures, state: structuredClone(state) }];
    scenarios();
  });
  on("copy-link", async (event) => {
    const button = event.currentTarget;
    const fragment = await toFragment(state, pins);
    history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname);
    copy(location.href, button);
  });
  window.addEventListener("hashchange", () => { if (!byId(location.hash.slice(1))) start().then(() => askAll(0)); });
  drops();
}

// What a pasted text is called: its ending says how it is read.
function nameOfText(text) {
  if (/^\s*\[[\w.-]+\]\s*$/m.test(text) && /^\s*[\w.-]+\s*=/m.test(text)) return "pasted.toml";
  if (/^\s*[\w.+-]+:(\s|$)/m.test(text) && !/python|ray |=\S/.test(text.split("\n")[0])) return "pasted.yaml";
  return "pasted.sh";
}

function nameOfExport(text) {
  if (text.startsWith("#!")) return "run.sh";
  return /^\s*\[[\w.-]+\]\s*$/m.test(text) ? "config.toml" : "config.yaml";
}

function drops() {
  let inside = 0;
  const over = (event) => event.dataTransfer?.types.includes("Files");
  window.addEventListener("dragenter", (event) => { if (over(event)) { inside += 1; byId("drop").hidden = false; } });
  window.addEventListener("dragleave", () => { inside = Math.max(0, inside - 1); byId("drop").hidden = inside === 0; });
  window.addEventListener("dragover", (event) => event.preventDefault());
  window.addEventListener("drop", (event) => {
    event.preventDefault();
    inside = 0;
    byId("drop").hidden = true;
    const [file] = event.dataTransfer?.files ?? [];
    if (file) takeFile(file, byId("logging").contains(event.target) || LOGS.test(file.name));
  });
}

async function start() {
  if (location.hash.length > 1 && !byId(location.hash.slice(1))) {
    try {
      ({ state, pins } = await fromFragment(location.hash.slice(1)));
    } catch {
      byId("pin-told").textContent = "the link's state could not be read; these are usual values";
    }
  }
  script = null;
  show();
  scenarios();
}

async function main() {
  try {
    names = await askCatalog();
  } catch (error) {
    say("answer", `the server does not answer: ${error.message}`);
    return;
  }
  byId("version").textContent = names.version;
  setColours(names);
  byId("export-to").replaceChildren(...names.written.map((each) => el("option", { value: each }, each)));
  byId("export-to").value = "verl";
  byId("script-as").replaceChildren(el("option", { value: "" }, "told by its words"), ...names.read.map((each) => el("option", { value: each }, each)));
  controls = makeControls(names, change);
  wire();
  await start();
  askAll(0);
}

main();
