"use strict";
const rows = [...document.querySelectorAll(".recipes tbody tr")];
const search = document.getElementById("search");
const choices = ["framework", "gpu", "kind"].map((name) => document.getElementById(name));
const count = document.getElementById("count");

function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const fits = words.every((word) => row.dataset.words.includes(word)) &&
      choices.every((choice) => !choice.value || row.dataset[choice.id] === choice.value);
    row.hidden = !fits;
    shown += fits;
  }
  count.textContent = shown === rows.length ? `${shown} recipes` : `${shown} of ${rows.length} recipes`;
}

// Rows without a value stay at the end, whichever way the others are sorted.
function compare(key, sign) {
  return (a, b) => {
    const [x, y] = [a.dataset[key], b.dataset[key]];
    if (x === "" || y === "") return (x === "") - (y === "");
    return sign * (key === "name" ? x.localeCompare(y) : Number(x) - Number(y));
  };
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const next = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    for (const each of document.querySelectorAll("th[aria-sort]")) each.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", next);
    const body = document.querySelector(".recipes tbody");
    body.append(...[...rows].sort(compare(button.dataset.key, next === "ascending" ? 1 : -1)));
  });
}
search.form.addEventListener("submit", (event) => event.preventDefault());
search.form.addEventListener("input", filter);
filter();
