// The state of the page, and the fragment of a link that holds it. A fragment never leaves the browser.

export const USUAL = {
  script: null,
  script_framework: "",
  framework: "verl-fsdp",
  model: "qwen2.5-7b",
  gpu: "h100-80gb-sxm",
  gpus: 8,
  algorithm: "grpo",
  prompt_tokens: 1024,
  response_tokens: 4096,
  mean_share: 0.4,
  prompts: 256,
  samples_per_prompt: 8,
  mode: "sync",
  staleness: 1,
  precision: "",
  rollout_precision: "",
  changes: {},
  taken: [],
  steps: 500,
  budget_usd: null,
  budget_days: null,
};
const LARGEST_SCRIPT = 200_000;
const KINDS = Object.fromEntries(Object.entries(USUAL).map(([name, value]) => [name, typeof value]));

// The mean response in tokens: a share of the longest, or null where all are as long as that.
export function meanTokens(state, longest) {
  return state.mean_share >= 1 ? null : Math.max(1, Math.round(state.mean_share * longest));
}

// What the server is asked. Of a script the controls say only what beside it is said, and what is changed.
export function asked(state) {
  if (state.script) {
    return { script: state.script, framework: state.script_framework || null, gpu: state.gpu, mean_response_share: state.mean_share, changes: state.changes, taken: state.taken };
  }
  const { model, gpu, gpus, algorithm, prompt_tokens, response_tokens, prompts, samples_per_prompt, mode } = state;
  return {
    model, gpu, gpus, algorithm, prompt_tokens, response_tokens, prompts, samples_per_prompt, mode,
    framework: state.framework || null,
    mean_response_tokens: meanTokens(state, response_tokens),
    staleness: mode === "async" ? state.staleness : null,
    precision: state.precision || null,
    rollout_precision: state.rollout_precision || null,
  };
}

export async function toFragment(state, pins) {
  const kept = { ...state };
  if (kept.script && kept.script.text.length > LARGEST_SCRIPT) kept.script = null;
  const small = Object.fromEntries(Object.entries(kept).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(USUAL[name])));
  if (!Object.keys(small).length && !pins.length) return "";
  const packed = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(JSON.stringify({ state: small, pins })));
  return btoa(Array.from(packed, (byte) => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

export async function fromFragment(text) {
  const packed = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
  const { state = {}, pins = [] } = JSON.parse(new TextDecoder().decode(await through(new DecompressionStream("deflate-raw"), packed)));
  const kept = Array.isArray(pins) ? pins.filter((each) => typeof each?.name === "string" && each.figures && each.state) : [];
  return { state: known(state), pins: kept.map((each) => ({ ...each, state: known(each.state) })) };
}

function known(state) {
  const found = Object.entries(state).filter(([name, value]) => Object.hasOwn(USUAL, name) && sane(name, value));
  return { ...structuredClone(USUAL), ...Object.fromEntries(found) };
}

function sane(name, value) {
  if (name === "script") return value === null || (typeof value?.name === "string" && typeof value?.text === "string");
  if (name === "changes") return value && typeof value === "object" && Object.values(value).every(Number.isInteger);
  if (name === "taken") return Array.isArray(value) && value.every((each) => typeof each === "string");
  if (name.startsWith("budget")) return value === null || Number.isFinite(value);
  return typeof value === KINDS[name];
}

async function through(transform, bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(transform);
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
