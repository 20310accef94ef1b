// Numbers as words with units, and elements whose texts are texts: nothing that a user or a file says becomes markup.

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function whole(value) {
  return plain.format(value);
}

export function figures(value, digits = 3) {
  if (!Number.isFinite(value)) return "unknown";
  if (value === 0) return "0";
  const after = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { minimumFractionDigits: Math.min(after, 6), maximumFractionDigits: Math.min(after, 6) });
}

// As rlplan/units.py has it (`show_duration`): the page says a time in the words of the command line.
export function seconds(value) {
  if (!Number.isFinite(value)) return "unknown";
  if (value === 0) return "0 s";
  const [sign, size] = [value < 0 ? "-" : "", Math.abs(value)];
  if (Number((size * 1e6).toFixed(1)) < 1000) return `${sign}${(size * 1e6).toFixed(1)} µs`;
  if (Number((size * 1e3).toFixed(1)) < 1000) return `${sign}${(size * 1e3).toFixed(1)} ms`;
  if (Number(size.toFixed(2)) < 120) return `${sign}${size.toFixed(2)} s`;
  const rounded = Math.round(size);
  if (rounded < 7200) return `${sign}${Math.floor(rounded / 60)} min ${rounded % 60} s`;
  const hours = Math.round(size / 3600);
  if (sign || hours < 48) return `${sign}${(size / 3600).toFixed(1)} h`;
  return `${whole(Math.floor(hours / 24))} d ${hours % 24} h`;
}

// Two times whose unit stands once, where it is the same and the only one.
export function interval([low, high]) {
  const [one, other] = [seconds(low).split(" "), seconds(high).split(" ")];
  const shared = one.length === 2 && other.length === 2 && one[1] === other[1];
  return `${shared ? one[0] : one.join(" ")} to ${other.join(" ")}`;
}

export function gpus(count) {
  return `${whole(count)} GPU${count === 1 ? "" : "s"}`;
}

export function gib(bytes) {
  if (bytes > 0 && bytes < 2 ** 30 / 20) return `${figures(bytes / 2 ** 20, 2)} MiB`;
  return `${(bytes / 2 ** 30).toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} GiB`;
}

export function usd(value) {
  if (!Number.isFinite(value)) return "unknown";
  return `${value >= 1000 ? whole(value) : figures(value)} USD`;
}

export function percent(fraction, digits = 0) {
  return `${(100 * fraction).toFixed(digits)} %`;
}

export function change(value, from) {
  if (!from || !Number.isFinite(value) || !Number.isFinite(from)) return "";
  const share = value / from - 1;
  if (Math.abs(share) < 0.0005) return "same";
  return `${share > 0 ? "+" : "−"}${(100 * Math.abs(share)).toFixed(Math.abs(share) < 0.1 ? 1 : 0)} %`;
}

// An element with properties and children; strings become text nodes.
export function el(tag, properties = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === "class") found.className = value;
    else if (name === "style") Object.assign(found.style, value);
    else if (name.startsWith("on")) found.addEventListener(name.slice(2), value);
    else if (name in found && typeof value !== "string") found[name] = value;
    else found.setAttribute(name, value);
  }
  found.append(...children.flat().filter((each) => each !== null && each !== undefined));
  return found;
}

export function byId(id) {
  return document.getElementById(id);
}

// Cells are texts or nodes; columns whose title begins with # hold figures.
export function table(titles, rows, caption) {
  const isFigure = titles.map((title) => title.startsWith("#"));
  const head = el("tr", {}, titles.map((title, place) => el("th", { scope: "col", class: isFigure[place] ? "figure" : null }, title.replace(/^#/, ""))));
  const body = rows.map((row) => el("tr", { class: row.strong ? "strong" : null }, (row.cells ?? row).map((cell, place) => el("td", { class: isFigure[place] ? "figure" : "short" }, ...[cell].flat()))));
  return el("table", {}, caption ? el("caption", { class: "visually-hidden" }, caption) : null, el("thead", {}, head), el("tbody", {}, body));
}

export function download(name, text) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "text/plain" })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed to copy";
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}
