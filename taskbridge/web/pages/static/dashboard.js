// Updates the status and the live part of a page. Without this script everything works, but does not update.
"use strict";
(() => {
  const part = document.getElementById("live");
  const status = document.getElementById("status");
  if (!part) return;
  const now = () => new Date().toLocaleTimeString();
  part.dataset.at = now();

  const isInUse = () => {
    const chosen = document.getSelection();
    return part.querySelector("details[open]") !== null ||
      (chosen !== null && !chosen.isCollapsed && part.contains(chosen.anchorNode));
  };
  const put = (where, html) => {
    if (where.dataset.shown === html) return;
    where.dataset.shown = html;
    const focused = where.contains(document.activeElement) ? document.activeElement : null;
    const wide = [...where.querySelectorAll(".wide")].map((one) => one.scrollLeft);
    const name = (one) => one.getAttribute("href") || one.getAttribute("aria-label");
    where.innerHTML = html; // the server has escaped all text in it
    where.querySelectorAll(".wide").forEach((one, at) => { one.scrollLeft = wide[at] || 0; });
    if (focused) [...where.querySelectorAll("a, [tabindex]")].find((one) => name(one) === name(focused))?.focus();
  };

  let isWaiting = false;
  const update = async () => {
    if (isWaiting || document.hidden) return;
    isWaiting = true;
    try {
      const answer = await fetch(part.dataset.live, { signal: AbortSignal.timeout(30000) });
      if (!answer.ok) throw new Error(answer.statusText);
      const live = await answer.json();
      put(status, live.status);
      // If there is no new part, a server does not answer, and the page is outdated.
      part.dataset.stale = live.part === undefined ? "yes" : "no";
      if (live.part !== undefined) {
        part.dataset.at = now();
        if (!isInUse()) put(part, live.part);
      }
      document.body.dataset.live = "yes";
    } catch {
      document.body.dataset.live = "no";
    } finally {
      isWaiting = false;
    }
  };
  update();
  setInterval(update, 2000);
  document.addEventListener("visibilitychange", update);
})();
