// The page of the system: asked for again every few seconds while somebody looks, and says so when it cannot be.

import { refreshNow } from "./parts.js";

const every = 1000 * Number(document.getElementById("system")?.dataset.every || 5);
const box = document.getElementById("live"), words = document.getElementById("live-words");
let since = null;

async function look() {
  if (!document.hidden) {
    const answered = await refreshNow();
    const now = new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
    since = answered ? null : (since ?? now);
    box.dataset.state = answered ? "live" : "offline";
    words.textContent = answered ? `As of ${now}, every ${every / 1000} s` : `No answer since ${since}; trying again`;
  }
  setTimeout(look, every);
}

setTimeout(look, every);
