// The page of one Run, live: its own stream says that something happened, the server draws the parts anew.

import { follow } from "./feed.js";
import { refresh } from "./parts.js";

const run = document.getElementById("run");
if (run && "live" in run.dataset && document.querySelector('[data-part="head"]')?.dataset.open === "1") {
  follow("/ws/runs/", (message) => {
    const runs = message.type === "resync" ? message.snapshot.runs : [message];
    if (runs.some((one) => one.id === run.dataset.run)) refresh();
  });
  follow(`/ws/runs/${run.dataset.run}/`, () => {
    if (document.querySelector('[data-part="head"]')?.dataset.open === "1") refresh();
  });
}
