// Every action asks first, says what it will do, and reports the result.

import { ApiError } from "./api.js";
import { h } from "./dom.js";

const dialog = document.getElementById("dialog");
const toasts = document.getElementById("toasts");
let isBusy = false;

// Whoever leaves the page leaves its question, too. A running action is not left: its result must be shown.
export function leave() {
  if (dialog.open && !isBusy) dialog.close();
}

// Resolves to the result of `perform`, or to null if the operator cancels. With `field`, a text is asked for, and given
// to `perform` as well; with `text`, it is this one, to be edited. `keep`: the button that does nothing; where the
// question is whether to cancel, it must not be called Cancel.
export function ask({ title, says, button, danger = false, keep = "Cancel", field = null, text = null, perform }) {
  return new Promise((resolve) => {
    const problem = h("p", { class: "problem", role: "alert" });
    const go = h("button", { type: "button", class: danger ? "button danger" : "button primary" }, button);
    const cancel = h("button", { type: "button", class: "button" }, keep);
    const input = field && (text === null
      ? h("input", { type: "text", "aria-label": field, placeholder: field, autocomplete: "off" })
      : h("textarea", { "aria-label": field, rows: 14, spellcheck: "false" }, text));
    dialog.replaceChildren(
      h("h2", { id: "dialog-title" }, title), ...says.map((text) => h("p", {}, text)),
      input ? h("p", {}, input) : "", problem, h("div", { class: "buttons" }, cancel, go));
    let done = null;
    cancel.addEventListener("click", () => dialog.close());
    // A running action cannot be cancelled: its result must be shown.
    dialog.oncancel = (event) => {
      if (go.disabled) event.preventDefault();
    };
    go.addEventListener("click", async () => {
      go.disabled = cancel.disabled = isBusy = true;
      go.textContent = "Working…";
      try {
        done = await perform((text) => { go.textContent = text; }, text === null ? input?.value.trim() : input.value);
        dialog.close();
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        problem.textContent = `${error.message} ${error.wayOut}`;
        go.textContent = "Try again";
        go.disabled = cancel.disabled = false;
      } finally {
        isBusy = false;
      }
    });
    dialog.classList.toggle("wide", text !== null);
    dialog.addEventListener("close", () => resolve(done), { once: true });
    dialog.showModal();
    cancel.focus();
  });
}

export function tell(text, kind = "good") {
  const toast = h("div", { class: `toast ${kind}` }, text);
  toasts.append(toast);
  setTimeout(() => toast.remove(), kind === "good" ? 8000 : 20000);
}
