// Edit a dead letter's payload and replay it, and act on the rows that are ticked.

import { changed, payload } from "./actions.js";
import { ApiError, post, queueUrl } from "./api.js";
import { ask, tell } from "./dialog.js";
import { compact, pretty } from "./payload.js";

async function edit({ queue, path }) {
  const found = await payload(queue, path);
  if (!found || found.text === null || found.truncated) {
    tell(found?.truncated ? `${path} has more than 64 KiB: edit a copy, send it, and delete the letter.`
      : `${path} is not text, and cannot be edited here.`, "bad");
    return;
  }
  const shown = pretty(found.text);
  const isJson = isJsonText(found.text);
  const done = await ask({
    title: "Edit and replay this dead letter",
    says: [path, "It becomes a message with this payload and its old metadata, with all its attempts; the letter goes."],
    field: "The new payload", text: shown, button: "Replay it so",
    perform: async (progress, given) => {
      if (isJson && !isJsonText(given)) {
        throw new ApiError(422, { message: "This is not JSON any more.", way_out: "Its handler expects JSON: correct it." });
      }
      // As it was if nobody has changed it; else as compact as a producer writes it.
      const body = given === shown ? found.text : compact(given);
      return post(queueUrl(queue, "/dead/edit"), { path, body });
    },
  });
  if (done) tell(`Replayed ${path} with the new payload.`);
}

function isJsonText(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

export function listen(currentPage, show) {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-action]");
    const action = button?.dataset.action ?? "";
    if (action !== "edit-one" && !action.endsWith("-many")) return;
    try {
      if (action === "edit-one") await edit(button.dataset);
      else await currentPage().selection.act(action);
    } catch (error) {
      tell(`${error.message} ${error.wayOut ?? ""}`, "bad");
    }
    changed();
  });
  document.addEventListener("change", (event) => {
    const { tick, tickAll } = event.target.dataset;
    const { selection, rows } = currentPage();
    if (!selection || (tick === undefined && tickAll === undefined)) return;
    selection.change(event.target, rows ?? []);
    show();
  });
}
