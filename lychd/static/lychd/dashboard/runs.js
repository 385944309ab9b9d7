// The list of Runs, live: rows that are shown are brought up to date where they stand, new ones wait behind a button.

import { follow } from "./feed.js";
import { refresh } from "./parts.js";

const list = document.getElementById("runs");
const fresh = new Set();
const opened = Date.parse(document.querySelector("#live time")?.dateTime ?? "") || Date.now();

function isShown(id) {
  return list?.querySelector(`[data-run="${CSS.escape(id)}"]`);
}

function news(run) {
  fresh.add(run.id);
  const box = document.getElementById("news"), button = document.getElementById("news-show");
  const text = fresh.size === 1 ? "1 new Run: show it" : `${fresh.size} new Runs: show them`;
  box.hidden = false;
  if (button.textContent !== text) {
    button.textContent = text;
    document.getElementById("announce").textContent = text;
  }
}

if (document.getElementById("news")) {
  document.getElementById("news-show").addEventListener("click", () => location.reload());
  const wanted = new URLSearchParams(location.search);
  follow("/ws/runs/", (message) => {
    const runs = message.type === "resync" ? message.snapshot.runs : [message];
    for (const run of runs) {
      if (isShown(run.id)) refresh();
      else if (Date.parse(run.created_at) > opened - 2000) {
        const fits =
          (!wanted.get("status") || wanted.get("status") === run.status) &&
          (!wanted.get("pattern") || wanted.get("pattern") === run.pattern.key);
        if (fits && (!list || "first" in list.dataset)) news(run);
      }
    }
  });
}
