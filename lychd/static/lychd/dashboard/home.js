// The front page: whatever changes among Runs or Consents, what needs a person and what is live is asked for again.

import { follow } from "./feed.js";
import { refresh } from "./parts.js";

const heard = (message) => {
  if (message.type !== "resync") refresh();
};
let first = true;
follow("/ws/consents/", heard);
follow("/ws/runs/", (message) => {
  // After an interruption the page may be behind whatever the snapshot tells.
  if (message.type === "resync" && first) first = false;
  else refresh();
});
