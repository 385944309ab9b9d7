// Brings parts of a page up to date by asking the server for the page again: the templates stay the only markup.
// A part in which somebody types or has the focus is left alone until they leave it.

const LEAST = 1500;
let asking = false, again = false, last = 0, timer = null;

async function swap() {
  asking = true;
  again = false;
  last = Date.now();
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
    if (!answer.ok || answer.redirected) return false;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-part]")) {
      const fresh = page.querySelector(`[data-part="${part.dataset.part}"]`);
      if (!fresh || fresh.innerHTML === part.innerHTML) continue;
      if (part.contains(document.activeElement)) {
        again = true;
        continue;
      }
      const open = [...part.querySelectorAll("details")].map((one) => one.open);
      part.replaceWith(fresh);
      fresh.querySelectorAll("details").forEach((one, number) => (one.open = open[number] ?? one.open));
    }
    document.title = page.title;
    return true;
  } catch {
    return false;
  } finally {
    asking = false;
    if (again) refresh();
  }
}

/** Ask for the page soon: many calls become one, and a page that nobody sees waits until it is seen. */
export function refresh() {
  if (asking) {
    again = true;
    return;
  }
  if (timer !== null || document.hidden) {
    again = true;
    return;
  }
  timer = setTimeout(async () => {
    timer = null;
    await swap();
  }, Math.max(100, LEAST - (Date.now() - last)));
}

/** Ask now. @returns {Promise<boolean>} whether there was an answer. */
export const refreshNow = swap;

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && again) refresh();
});
