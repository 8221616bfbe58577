// A run's state as a coloured word with a mark.
import { el } from "./dom.js";

const STATES = { completed: ["good", "✓"], running: ["good", "▶"], failed: ["bad", "✕"], stopped: ["plain", "■"], starting: ["plain", "…"], paused: ["warn", "❚❚"], stopping: ["warn", "■"], queued: ["plain", "…"], checking: ["plain", "…"] };

export function stateChip(state) {
  const [kind, mark] = STATES[state] || ["plain", "·"];
  return el("span", { class: `chip ${kind}` }, el("span", { "aria-hidden": "true" }, mark), state);
}
