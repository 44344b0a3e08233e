// Updates the status and the live part of a page. Without this script everything works, but does not update.
"use strict";
(() => {
  const part = document.getElementById("live");
  if (!part) return;
  const now = () => new Date().toLocaleTimeString();
  part.dataset.at = now();

  const isInUse = () => {
    const chosen = document.getSelection();
    return part.querySelector("details[open]") !== null ||
      (!chosen.isCollapsed && part.contains(chosen.anchorNode));
  };
  const put = (where, html) => {
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
      const answer = await fetch(location.href, { signal: AbortSignal.timeout(30000) });
      if (!answer.ok) throw new Error(answer.statusText);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const status = document.getElementById("status");
      const [live, line] = ["live", "status"].map((id) => page.getElementById(id).innerHTML);
      if (status.innerHTML !== line) status.innerHTML = line;
      if (part.innerHTML !== live && !isInUse()) put(part, live);
      part.dataset.at = now();
      part.dataset.stale = "no";
    } catch {
      part.dataset.stale = "yes";
    } finally {
      isWaiting = false;
    }
  };
  setInterval(update, 2000);
  document.addEventListener("visibilitychange", update);
  window.addEventListener("pageshow", update);
})();
