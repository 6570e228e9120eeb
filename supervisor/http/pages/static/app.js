// Keeps an open page up to date, and sends its buttons without leaving it. The pages work without this script.
"use strict";

(() => {
  const live = document.getElementById("live");
  const answer = document.getElementById("answer");
  const TEXTS = { on: "Live", lost: "Connecting…", unavailable: "Store unavailable", full: "Not live: too many pages are open", gone: "Gone", failed: "Not live: internal error" };
  const WAIT = 15000;
  let source = null, timer = 0;

  function show(state, text) {
    if (!live || (live.dataset.state === state && !text)) return;
    live.dataset.state = state;
    live.textContent = text || TEXTS[state] || "";
  }

  // The server leads a page without a session to the login.
  function leaveIfLoggedOut(reply) {
    if (reply.status === 401) location.reload();
  }

  // --- updates

  function connect() {
    clearTimeout(timer);
    if (source || document.hidden || "still" in document.body.dataset) return;
    source = new EventSource("/events?page=" + encodeURIComponent(location.pathname + location.search));
    source.addEventListener("parts", (event) => {
      if ("returns" in document.body.dataset) return location.reload();
      show("on");
      for (const [id, html] of Object.entries(JSON.parse(event.data))) replace(id, html);
    });
    source.addEventListener("unavailable", (event) => show("unavailable", ""));
    source.addEventListener("failed", () => show("failed"));
    source.addEventListener("gone", () => { show("gone"); disconnect(); });
    source.addEventListener("error", () => {
      if (!source || source.readyState !== EventSource.CLOSED) return show("lost");
      disconnect();  // the answer was not a stream: no room, or a login is needed again
      show("full");
      timer = setTimeout(connect, WAIT);
      fetch("/static/app.js", { method: "HEAD", cache: "no-store" }).then(leaveIfLoggedOut, () => {});
    });
  }

  function disconnect() {
    if (source) source.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => document.hidden ? disconnect() : connect());
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", connect);

  function replace(id, html) {
    const old = document.getElementById(id);
    if (!old) return;
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const made = old.cloneNode(false);
    const template = document.createElement("template");
    template.innerHTML = html;
    made.append(template.content);
    merge(old, made);
    if (!focused || document.activeElement === focused) return;
    const again = focused.isConnected ? focused : old.querySelector("h1, h2");
    if (!again) return;
    if (!focused.isConnected) again.tabIndex = -1;
    again.focus({ preventScroll: true });
  }

  const key = (node) => node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key || "" : "";

  // Make `old` the same as `wanted`, and keep the elements that are in both: with their focus, selection, scroll and open state.
  function merge(old, wanted) {
    if (old.isEqualNode(wanted)) return;
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== wanted.nodeValue) old.nodeValue = wanted.nodeValue;
      return;
    }
    const stays = (name) => (name === "open" && old.localName === "details") || (name === "tabindex" && old === document.activeElement);
    for (const { name } of [...old.attributes]) if (!wanted.hasAttribute(name) && !stays(name)) old.removeAttribute(name);
    for (const { name, value } of wanted.attributes) {
      if (old.getAttribute(name) !== value && !stays(name)) old.setAttribute(name, value);
    }
    const keyed = new Map();
    for (const child of old.children) if (key(child)) keyed.set(key(child), child);
    let at = old.firstChild;
    for (const child of [...wanted.childNodes]) {
      const name = key(child);
      let same = name ? keyed.get(name) : null;
      if (!same && !name && at && !key(at) && at.nodeName === child.nodeName) same = at;
      if (!same) { old.insertBefore(child, at); continue; }
      if (same === at) at = at.nextSibling; else old.insertBefore(same, at);
      merge(same, child);
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  }

  // --- buttons

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.classList.contains("action")) return;
    event.preventDefault();
    if (form.ariaBusy === "true") return;
    form.ariaBusy = "true";
    try {
      const reply = await fetch(form.action, {
        method: "POST", body: new URLSearchParams(new FormData(form)), headers: { Accept: "application/json" },
      });
      leaveIfLoggedOut(reply);
      const found = await reply.json().catch(() => ({}));
      report(found.message || found.error || "It did not work: status " + reply.status, !reply.ok);
      form.closest("details.careful")?.removeAttribute("open");
      if (reply.ok && found.location) location.assign(found.location);
      else if (reply.ok && live?.dataset.state !== "on") location.reload();
    } catch {
      report("The supervisor does not answer: it may have ended", true);
    } finally {
      form.ariaBusy = "false";
    }
  });

  document.addEventListener("change", (event) => {
    if (!event.target.matches("input[data-all]")) return;
    for (const box of event.target.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = event.target.checked;
  });

  // --- charts: the values of the minute under the pointer

  let figure = null;
  function point(event) {
    const over = event.target.closest?.("figure") || null;
    if (figure && figure !== over) showMinute(figure, -1);
    figure = over;
    const plot = over?.querySelector("svg");
    if (!plot) return;
    const box = plot.getBoundingClientRect();
    showMinute(over, Math.max(0, Math.min(59, Math.floor((event.clientX - box.left) / box.width * 60))));
  }

  function showMinute(of, minute) {
    for (const value of of.querySelectorAll("b[data-values]")) {
      const values = value.dataset.values.split("|");
      value.textContent = minute < 0 ? values.findLast((each) => each !== "–") || "–" : values[minute];
    }
    of.querySelector(".at").textContent = minute < 0 || minute === 59 ? "" : `${59 - minute} min ago`;
  }

  document.addEventListener("pointermove", point, { passive: true });

  let closing = 0;
  function report(text, failed) {
    if (!answer) return;
    clearTimeout(closing);
    answer.textContent = text;
    answer.dataset.kind = failed ? "bad" : "ok";
    closing = setTimeout(() => { answer.textContent = ""; }, failed ? 15000 : 6000);
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const open = event.target.closest?.("details.careful[open]");
    if (!open) return;
    open.removeAttribute("open");
    open.querySelector("summary").focus();
  });

  document.documentElement.classList.add("js");
  connect();
})();
