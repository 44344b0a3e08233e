// Keeps the status and the live part of a page as they are now. Without this script all works, and stands still.
"use strict";
(() => {
  const part = document.getElementById("live");
  const status = document.getElementById("status");
  if (!part || !window.EventSource) return;

  const now = () => { part.dataset.at = new Date().toLocaleTimeString(); };
  now();

  const isInUse = () => {
    const chosen = document.getSelection();
    return part.querySelector("details[open]") !== null ||
      (chosen !== null && !chosen.isCollapsed && part.contains(chosen.anchorNode));
  };
  const put = (where, html) => {
    if (!where || html === undefined || where.dataset.shown === html) return;
    where.dataset.shown = html;
    const focused = where.contains(document.activeElement) ? document.activeElement : null;
    const wide = [...where.querySelectorAll(".wide")].map((one) => one.scrollLeft);
    const name = (one) => one.getAttribute("href") || one.getAttribute("aria-label");
    where.innerHTML = html; // the server has escaped all text in it
    where.querySelectorAll(".wide").forEach((one, at) => { one.scrollLeft = wide[at] || 0; });
    if (focused) [...where.querySelectorAll("a, [tabindex]")].find((one) => name(one) === name(focused))?.focus();
  };

  let source = null;
  let again = null;
  const close = () => {
    clearTimeout(again);
    source?.close();
  };
  const open = () => {
    close();
    source = new EventSource(part.dataset.live);
    source.addEventListener("look", (event) => {
      const look = JSON.parse(event.data);
      put(status, look.status);
      if (!isInUse()) put(part, look.part);
      // Without a new part a server does not answer, and what is shown is of before.
      part.dataset.stale = look.part === undefined ? "yes" : "no";
      if (look.part !== undefined) now();
      document.body.dataset.live = "yes";
    });
    source.addEventListener("error", () => {
      // A stream that ends is opened again by the browser, but not one that was refused.
      if (source.readyState !== EventSource.CLOSED) return;
      document.body.dataset.live = "no";
      again = setTimeout(open, 10000);
    });
  };
  open();
  addEventListener("pagehide", close);
  // The browser may keep a page that is left, and show it again as it was.
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
})();
