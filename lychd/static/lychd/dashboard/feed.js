// Follows a feed of changes over a WebSocket: reconnects with backoff from its cursor, and always says how it stands.
// Knows no page. Every message tells a row's whole standing, so one that comes twice changes nothing.

const FIRST = 500, LAST = 30000;
const standing = new Map();

function tell() {
  const box = document.getElementById("live"), words = document.getElementById("live-words");
  if (!box || !words) return;
  const states = [...standing.values()];
  const worst = ["refused", "offline", "catching-up"].find((one) => states.some((s) => s.state === one)) ?? "live";
  const since = states.find((s) => s.state === worst)?.since;
  const time = since?.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const said = {
    live: "Live",
    "catching-up": "Catching up",
    offline: `Offline since ${time}; trying again`,
    refused: "Not live: reload the page",
  };
  box.dataset.state = worst === "refused" ? "offline" : worst;
  if (words.textContent !== said[worst]) words.textContent = said[worst];
}

function set(path, state) {
  const now = standing.get(path);
  if (now?.state === state) return;
  standing.set(path, { state, since: new Date() });
  tell();
}

/**
 * @param {string} path of the feed, such as /ws/runs/
 * @param {(message: object) => void} heard gets every message: resync first, then changes
 */
export function follow(path, heard) {
  let cursor = null, pause = FIRST, timer = null;
  set(path, "catching-up");

  function address() {
    const url = new URL(path, location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    const tenant = document.body.dataset.tenant;
    if (tenant) url.searchParams.set("tenant", tenant);
    if (cursor) url.searchParams.set("cursor", cursor);
    return url;
  }

  function connect() {
    timer = null;
    const socket = new WebSocket(address());
    socket.addEventListener("open", () => {
      pause = FIRST;
      set(path, "live");
    });
    socket.addEventListener("message", (event) => {
      const message = JSON.parse(event.data);
      if (message.cursor) cursor = message.cursor;
      heard(message);
    });
    socket.addEventListener("close", (event) => {
      if (event.code === 4401 || event.code === 4403) return set(path, "refused");
      set(path, "offline");
      timer = setTimeout(connect, pause * (0.75 + Math.random() / 2));
      pause = Math.min(pause * 2, LAST);
    });
  }

  addEventListener("online", () => {
    if (timer !== null) {
      clearTimeout(timer);
      connect();
    }
  });
  connect();
}
