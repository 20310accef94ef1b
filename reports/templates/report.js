"use strict";
for (const timeline of document.querySelectorAll(".timeline")) {
  const tracks = timeline.querySelector(".tracks");
  const told = timeline.querySelector(".told");
  const most = 64;
  let zoom = 1;

  // Keeps the place under `at`, in pixels from the left edge, where it is.
  function setZoom(wanted, at = tracks.clientWidth / 2) {
    const next = Math.min(most, Math.max(1, wanted));
    const place = (tracks.scrollLeft + at) / zoom;
    zoom = next;
    timeline.style.setProperty("--zoom", String(zoom));
    tracks.scrollLeft = place * zoom - at;
  }

  function tell(bar) {
    told.textContent = bar.title || bar.getAttribute("aria-label");
  }

  function focus(bar) {
    if (!bar) return;
    for (const each of timeline.querySelectorAll(".bar")) each.tabIndex = -1;
    bar.tabIndex = 0;
    bar.focus({ preventScroll: true });
    bar.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  // The bar of another track that begins nearest to this one.
  function beside(bar, step) {
    const all = [...timeline.querySelectorAll(".track")].filter((each) => each.querySelector(".bar"));
    const next = all[all.indexOf(bar.parentElement) + step];
    if (!next) return null;
    const left = parseFloat(bar.style.left);
    const far = (each) => Math.abs(parseFloat(each.style.left) - left);
    return [...next.querySelectorAll(".bar")].sort((a, b) => far(a) - far(b))[0];
  }

  function neighbour(bar, step) {
    const all = [...timeline.querySelectorAll(".bar")];
    return all[all.indexOf(bar) + step];
  }

  timeline.addEventListener("pointerover", (event) => {
    const bar = event.target.closest(".bar");
    if (bar) tell(bar);
  });
  timeline.addEventListener("focusin", (event) => {
    if (event.target.matches(".bar")) tell(event.target);
  });
  timeline.addEventListener("click", (event) => {
    const how = event.target.dataset.zoom;
    if (how) setZoom(how === "all" ? 1 : how === "in" ? zoom * 2 : zoom / 2);
    else focus(event.target.closest(".bar"));
  });
  timeline.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "+" || event.key === "=") setZoom(zoom * 2);
    else if (event.key === "-") setZoom(zoom / 2);
    else if (event.key === "0" || event.key === "Escape") setZoom(1);
    else if (event.target.matches(".bar")) {
      const bars = [...timeline.querySelectorAll(".bar")];
      const moves = {
        ArrowRight: () => neighbour(event.target, 1),
        ArrowLeft: () => neighbour(event.target, -1),
        ArrowDown: () => beside(event.target, 1),
        ArrowUp: () => beside(event.target, -1),
        Home: () => bars[0],
        End: () => bars[bars.length - 1],
      };
      if (!moves[event.key]) return;
      focus(moves[event.key]());
    } else return;
    event.preventDefault();
  });
  tracks.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const at = event.clientX - tracks.getBoundingClientRect().left;
    setZoom(event.deltaY < 0 ? zoom * 1.25 : zoom / 1.25, at);
  }, { passive: false });
  addEventListener("beforeprint", () => setZoom(1));
}
