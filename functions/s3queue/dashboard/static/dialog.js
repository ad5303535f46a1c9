// Every action asks first, says what it will do, and reports the result.

import { ApiError } from "./api.js";
import { h } from "./dom.js";

const dialog = document.getElementById("dialog");
const toasts = document.getElementById("toasts");

// Resolves to the result of `perform`, or to null if the operator cancels. With `field`, a text is asked for, and given
// to `perform` as well.
export function ask({ title, says, button, danger = false, field = null, perform }) {
  return new Promise((resolve) => {
    const problem = h("p", { class: "problem", role: "alert" });
    const go = h("button", { type: "button", class: danger ? "button danger" : "button primary" }, button);
    const cancel = h("button", { type: "button", class: "button" }, "Cancel");
    const input = field && h("input", { type: "text", "aria-label": field, placeholder: field, autocomplete: "off" });
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
      go.disabled = cancel.disabled = true;
      go.textContent = "Working…";
      try {
        done = await perform((text) => { go.textContent = text; }, input?.value.trim());
        dialog.close();
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        problem.textContent = `${error.message} ${error.wayOut}`;
        go.textContent = "Try again";
        go.disabled = cancel.disabled = false;
      }
    });
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
