// The inbox and the page of one Consent, live: what was decided elsewhere says so where it stands, what is new waits
// behind a button, and nothing that somebody reads or types moves.

import { follow } from "./feed.js";
import { refresh } from "./parts.js";

const list = document.getElementById("inbox");
const one = document.getElementById("consent");
const announce = (text) => {
  const place = document.getElementById("announce");
  if (place) place.textContent = text;
};
const WORDS = { granted: "granted", denied: "denied", expired: "expired: the answer is no", cancelled: "cancelled" };
const SIGNS = { granted: "✓", denied: "✕", expired: "◷", cancelled: "⊘" };
const by = (told) => (told.decided_by ? ` by ${told.decided_by}` : "");

function settle(row, told) {
  if (row.dataset.status === told.status || told.status === "pending") return;
  row.dataset.status = told.status;
  const state = row.querySelector("[data-state]");
  if (state) state.textContent = `${SIGNS[told.status] ?? ""} ${WORDS[told.status] ?? told.status}${by(told)}`;
  row.classList.remove("inbox-mine");
  row.classList.add("inbox-over");
  const act = row.querySelector(".inbox-act");
  // A focus is never taken from under somebody's fingers: the link stays, and leads to the receipt.
  const link = act?.querySelector("a");
  if (link) {
    link.textContent = "See the receipt";
    link.classList.remove("primary");
  }
  announce(`${told.title}: ${WORDS[told.status] ?? told.status}${by(told)}`);
}

const fresh = new Set();
const base = document.title.replace(/^\(\d+\) /, "");
function news(told) {
  const chosen = list.dataset.chosen, risk = new URLSearchParams(location.search).get("risk");
  const wanted = (chosen === "all" || chosen === told.status) && (!risk || risk === told.risk);
  if (wanted) fresh.add(told.id);
  else fresh.delete(told.id);
  const box = document.getElementById("news"), button = document.getElementById("news-show");
  const text = fresh.size === 1 ? "1 new: show it" : `${fresh.size} new: show them`;
  box.hidden = fresh.size === 0;
  if (button.textContent !== text) {
    button.textContent = text;
    if (fresh.size) announce(text);
  }
  document.title = fresh.size ? `(${fresh.size}) ${base}` : base;
}

function rowOf(id) {
  return list.querySelector(`[data-consent="${CSS.escape(id)}"]`);
}

function heardList(message) {
  const rows = message.type === "resync" ? message.snapshot.consents : [message];
  // What the page began with is no news: only what was asked after it was made is.
  const made = Date.parse(document.querySelector("#live time")?.dateTime ?? "") || opened;
  for (const told of rows) {
    const row = rowOf(told.id);
    if (row) settle(row, told);
    else if ("first" in list.dataset) {
      const at = Date.parse(told.status === "pending" ? told.requested_at : told.updated_at);
      if (message.type !== "resync" || at > made - 2000) news(told);
    }
  }
}

const opened = Date.parse(document.querySelector("#live time")?.dateTime ?? "") || Date.now();
if (list && "feed" in list.dataset) {
  document.getElementById("news-show").addEventListener("click", () => location.reload());
  follow("/ws/consents/", heardList);
}
if (list) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    const step = { j: 1, k: -1 }[event.key];
    const links = [...list.querySelectorAll("h2 a")];
    if (!step || !links.length) return;
    const now = links.findIndex((link) => link.closest("li").contains(document.activeElement));
    links[Math.max(0, Math.min(links.length - 1, now + step))].focus();
    event.preventDefault();
  });
}

if (one && "feed" in one.dataset) {
  follow("/ws/consents/", (message) => {
    const rows = message.type === "resync" ? message.snapshot.consents : [message];
    const told = rows.find((row) => row.id === one.dataset.consent);
    if (!told || told.status === one.dataset.status) return;
    one.dataset.status = told.status;
    document.getElementById("settled-words").textContent =
      `Meanwhile it was ${WORDS[told.status] ?? told.status}${by(told)}.`;
    document.getElementById("settled").hidden = false;
    one.querySelectorAll("button[name=verdict]").forEach((button) => (button.disabled = true));
    refresh();
  });
}
// The Run of this page is told by its part, which the server draws anew.
if (one && one.querySelector("[data-part=run]")) {
  follow("/ws/runs/", (message) => {
    const rows = message.type === "resync" ? message.snapshot.runs : [message];
    if (rows.some((row) => row.id === one.dataset.run)) refresh();
  });
}
