// Keeps the moving part of a page up to date while it is looked at. Without it every page works, and shows what was true when it was made.
"use strict";
(() => {
  const state = document.getElementById("live-state");
  const part = document.getElementById("live");
  if (!state || !part || !window.EventSource) return;
  const page = new URL(state.dataset.live, location.href);
  const address = new URL("/live", location.href);
  address.searchParams.set("path", page.pathname);
  page.searchParams.forEach((value, name) => { if (name !== "path") address.searchParams.set(name, value); });
  let source = null;
  let failures = 0;

  const say = (text) => { if (state.textContent !== text) state.textContent = text; };

  const show = (html) => {
    const active = document.activeElement;
    const selection = getSelection();
    if (selection && !selection.isCollapsed && part.contains(selection.anchorNode)) return; // somebody copies from it
    const links = [...part.querySelectorAll("a, [tabindex]")];
    const index = links.indexOf(active);
    const scrolls = [...part.querySelectorAll(".wide")].map((one) => one.scrollLeft);
    part.innerHTML = html;
    part.querySelectorAll(".wide").forEach((one, number) => { one.scrollLeft = scrolls[number] || 0; });
    if (index < 0) return;
    const again = [...part.querySelectorAll("a, [tabindex]")];
    const same = again.find((one) => active.href && one.href === active.href && one.textContent === active.textContent) || again[index];
    if (same) same.focus({ preventScroll: true });
  };

  const stop = () => { if (source) source.close(); source = null; };

  const start = () => {
    if (source || document.hidden) return;
    source = new EventSource(address);
    source.addEventListener("part", (event) => { failures = 0; show(event.data); say("Live: this page follows what happens."); });
    source.addEventListener("gone", () => { stop(); location.reload(); });
    source.addEventListener("error", () => {
      failures += 1;
      say(failures > 2 ? "This node does not answer: what you see is old. It is tried again." : "Connecting again.");
      if (source && source.readyState === EventSource.CLOSED) { stop(); setTimeout(again, 5000); }
    });
  };

  // The node answers, and refuses the stream: the session has ended, as after a restart, or too many look.
  const again = async () => {
    try {
      const door = await fetch("/login", { redirect: "manual", cache: "no-store" }); // it leads on whoever has a session
      if (door.ok) return location.reload();
      say("Not live: too many pages are open on this node. It is tried again.");
    } catch { /* it does not answer */ }
    start();
  };

  document.addEventListener("visibilitychange", () => { if (document.hidden) { stop(); say("Paused while nobody looks."); } else start(); });
  addEventListener("pagehide", stop);
  addEventListener("pageshow", start);
  start();
})();
