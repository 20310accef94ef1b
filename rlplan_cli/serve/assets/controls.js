// Controls: a label, a number that can be typed and a slider over usual values for each; buttons are buttons.

import { byId, el, gib, whole } from "./words.js";

const LENGTHS = [128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 16384, 20480, 24576, 32768, 49152, 65536, 98304, 131072];
const PROMPTS = [8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096];
const SAMPLES = [1, 2, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64];
const NODES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];
const STEPS = [50, 100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000, 10000];
const SHARES = [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1];

export function gpuNumbers(perNode) {
  const parts = [1, 2, 4].filter((size) => size < perNode);
  return [...parts, ...NODES.map((nodes) => nodes * perNode)];
}

// Draws the fields once; `change(name, value)` is called as they move. Returns `show(state, script, answer)`.
export function makeControls(catalog, change) {
  const place = byId("fields");
  const fields = {};

  const add = (field) => { fields[field.name] = field; place.append(field.node); };
  add(text("model", "Model", catalog.models, "Preset, Hugging Face id in your cache, or path of its config", change));
  const gpus = Object.entries(catalog.devices).filter(([, each]) => each.kind === "gpu" || each.kind === "npu");
  const of = gpus.length ? gpus : Object.entries(catalog.devices);
  add(select("gpu", "GPU", of.map(([name, each]) => [name, `${each.title}, ${gib(each.memory_bytes)}`]), change));
  add(slider("gpus", "GPUs", "", () => [8], change));
  place.append(el("div", { class: "two" },
    (fields.algorithm = select("algorithm", "Algorithm", catalog.algorithms.map((each) => [each, each]), change)).node,
    (fields.framework = select("framework", "Framework", [["", "rlplan's executor"], ...catalog.steps.filter((each) => each !== "rlplan").map((each) => [each, each])], change)).node));
  add(slider("prompt_tokens", "Longest prompt", "tokens", () => LENGTHS, change));
  add(slider("response_tokens", "Longest response", "tokens", () => LENGTHS, change));
  add(slider("mean_share", "Mean response", "tokens", () => SHARES, change, true));
  add(slider("prompts", "Prompts a step", "", () => PROMPTS, change));
  add(slider("samples_per_prompt", "Responses a prompt", "", () => SAMPLES, change));
  place.append(el("div", { class: "two" },
    (fields.mode = select("mode", "Mode", catalog.modes.map((each) => [each, each]), change)).node,
    (fields.staleness = slider("staleness", "Staleness", "updates", () => [1, 2, 3, 4, 6, 8], change)).node));
  const named = (formats) => formats.map((each) => [each, each]);
  place.append(el("div", { class: "two" },
    (fields.precision = select("precision", "Training in", [["", "the GPU's usual"], ...named(catalog.precisions)], change)).node,
    (fields.rollout_precision = select("rollout_precision", "Rollout in", [["", "as training"], ...named(catalog.rollout_precisions)], change)).node));
  add(slider("steps", "Steps of the run", "", () => STEPS, change));
  place.append(el("div", { class: "two" },
    (fields.budget_usd = amount("budget_usd", "Budget, USD", change)).node,
    (fields.budget_days = amount("budget_days", "Deadline, days", change)).node));

  function show(state, script) {
    const device = catalog.devices[state.gpu];
    fields.gpus.values = gpuNumbers(device?.gpus_per_node ?? 8);
    const longest = valueOf("response_tokens");
    fields.mean_share.shown = (share) => Math.round(share * longest);
    fields.mean_share.typed = (tokens) => Math.min(1, tokens / longest);

    function valueOf(name) {
      return state.script ? state.changes[name] ?? script?.controls?.[name] ?? state[name] : state[name];
    }
    for (const [name, field] of Object.entries(fields)) {
      const ofScript = state.script && !["gpu", "mean_share", "steps", "budget_usd", "budget_days"].includes(name);
      const key = script?.keys?.[name];
      const off = ofScript && !key;
      field.show(ofScript ? valueOf(name) : state[name], off);
      const hidden = (state.script && ["model", "algorithm", "framework", "mode", "precision", "rollout_precision"].includes(name)) || (name === "staleness" && (state.script || state.mode !== "async"));
      field.node.hidden = Boolean(hidden);
      field.say(off && script ? "no key of its own in the script: change it there" : key ? key : field.usual(state, device));
    }
    for (const two of place.querySelectorAll(".two")) two.hidden = [...two.children].every((each) => each.hidden);
  }
  fields.gpus.usual = (state, device) => {
    const nodes = state.gpus / (device?.gpus_per_node ?? 8);
    return nodes > 1 ? `${whole(nodes)} nodes of ${device.gpus_per_node}` : "in one node";
  };
  fields.gpu.usual = (state, device) => (device ? `${device.gpus_per_node} in a node, ${device.usd_per_hour.toFixed(2)} USD an hour each (list price)` : "");
  fields.mean_share.usual = (state) => {
    const share = state.mean_share >= 1 ? "all as long as the longest" : `${Math.round(state.mean_share * 100)} % of the longest, spread as in published runs`;
    return state.script ? `assumed, no script says it: ${share}` : share;
  };
  return { fields, show, mark: (names) => mark(fields, names) };
}

// Says what is wrong beside its field: pairs of field and message.
function mark(fields, wrong) {
  for (const [name, field] of Object.entries(fields)) field.complain(wrong[name] ?? "");
}

function base(name, label, unit, control, extra = []) {
  const id = `field-${name}`;
  control.id = id;
  const more = el("p", { class: "more", id: `${id}-more` });
  const error = el("p", { class: "error", id: `${id}-error`, role: "alert" });
  control.setAttribute("aria-describedby", `${more.id} ${error.id}`);
  const line = el("div", { class: "line" }, el("label", { for: id }, label), extra.length ? el("span", {}, control, unit ? el("span", { class: "unit" }, ` ${unit}`) : null) : null);
  const node = el("div", { class: "field", "data-name": name }, line, extra.length ? extra : control, more, error);
  return {
    name, node, usual: () => "",
    say(words) { if (more.textContent !== words) more.textContent = words; },
    complain(words) {
      if (error.textContent !== words) error.textContent = words;
      if (words) control.setAttribute("aria-invalid", "true");
      else control.removeAttribute("aria-invalid");
    },
  };
}

function slider(name, label, unit, values, change, isShare = false) {
  const number = el("input", { type: "number", min: "1", step: "1", inputmode: "numeric" });
  const range = el("input", { type: "range", min: "0", step: "1", "aria-label": `${label}, slider` });
  const field = base(name, label, unit, number, [range]);
  field.values = values();
  field.shown = (value) => value;
  field.typed = (value) => value;
  const nearest = (value) => {
    let best = 0;
    field.values.forEach((each, place) => { if (Math.abs(Math.log(each / value)) < Math.abs(Math.log(field.values[best] / value))) best = place; });
    return best;
  };
  range.addEventListener("input", () => change(name, field.values[Number(range.value)]));
  number.addEventListener("input", () => {
    const value = Number(number.value);
    if (Number.isInteger(value) && value >= 1) change(name, isShare ? field.typed(value) : value);
  });
  number.addEventListener("blur", () => field.again());
  field.again = () => {};
  field.show = (value, off) => {
    range.max = String(field.values.length - 1);
    const placed = String(nearest(value));
    if (range.value !== placed) range.value = placed;
    const shown = String(field.shown(value));
    field.again = () => { number.value = shown; };
    if (document.activeElement !== number) number.value = shown;
    range.setAttribute("aria-valuetext", `${shown} ${unit}`.trim());
    for (const each of [number, range]) each.disabled = Boolean(off);
    field.node.classList.toggle("off", Boolean(off));
  };
  return field;
}

function select(name, label, options, change) {
  const control = el("select", {}, options.map(([value, words]) => el("option", { value }, words)));
  const field = base(name, label, "", control);
  control.addEventListener("input", () => change(name, control.value));
  field.show = (value, off) => {
    if (control.value !== value) control.value = value;
    control.disabled = Boolean(off);
  };
  return field;
}

function text(name, label, options, hint, change) {
  const list = el("datalist", { id: `list-${name}` }, options.map((value) => el("option", { value })));
  const control = el("input", { type: "text", list: list.id, spellcheck: "false", maxlength: "300" });
  const field = base(name, label, "", control);
  field.node.append(list);
  field.usual = () => hint;
  control.addEventListener("input", () => change(name, control.value.trim()));
  field.show = (value) => { if (document.activeElement !== control && control.value !== value) control.value = value; };
  return field;
}

function amount(name, label, change) {
  const control = el("input", { type: "number", min: "0", step: "any", placeholder: "none" });
  const field = base(name, label, "", control, []);
  control.addEventListener("input", () => change(name, control.value === "" ? null : Math.max(0, Number(control.value))));
  field.show = (value) => { if (document.activeElement !== control) control.value = value ?? ""; };
  return field;
}
