// All runs, the newest first.
import { aborted, get } from "./api.js";
import { el, fill, note, table, viewHead } from "./dom.js";
import { count, duration, number, when } from "./format.js";
import { stateChip } from "./state_chip.js";

const AGAIN_MS = 3000;
const AT_ONCE = 1000; // the most that GET /v1/runs answers

export async function mount(root, { go }) {
  const stopping = new AbortController();
  const list = el("div", { class: "panel across" });
  const picked = new Set();
  const known = new Map(); // by their numbers
  let more = false; // earlier ones than these
  const earlier = el("button", { class: "hidden", on: { click: () => showEarlier().catch((error) => aborted(error) || fill(list, note(error.message, "bad"))) } }, "Earlier runs");
  const compare = el("button", { disabled: true, on: { click: () => go(`#/compare?runs=${[...picked].join(",")}`) } }, "Compare the chosen");
  fill(root, viewHead("Runs", "Every run that this coordinator has taken. One is active at a time; the others wait in order.", compare, el("button", { class: "main", on: { click: () => go("#/start") } }, "Start a run")), list, earlier);

  const pick = (run) => el("input", { type: "checkbox", "aria-label": `Compare ${run.id}`, checked: picked.has(run.id), on: { change: (event) => {
    if (event.target.checked) picked.add(run.id);
    else picked.delete(run.id);
    compare.disabled = picked.size < 1;
  } } });
  const done = (run) => (run.state === "completed" ? run.rounds : run.version ?? 0); // each round makes the next version; the newest round is open
  // Of a run that goes on, by this browser's clock: none where stored times are ahead of that.
  const took = (run) => (run.ended_ms ?? Math.max(Date.now(), run.started_ms)) - run.started_ms || null;
  const columns = [
    { label: "", cell: pick },
    { label: "Run", cell: (run) => el("a", { href: `#/${run.id}/overview` }, run.id) },
    { label: "Name", cell: (run) => [el("span", { class: "wrap" }, run.name || "–"), run.error || run.waiting_for ? el("div", { class: "small quiet wrap" }, run.error || `waits: ${run.waiting_for}`) : ""] },
    { label: "State", cell: (run) => stateChip(run.state) },
    { label: "Objective", cell: (run) => run.objective },
    { label: "Mode", cell: (run) => run.mode },
    { label: "Rounds", number: true, cell: (run) => `${count(done(run))} / ${count(run.rounds)}` },
    { label: "Reward", number: true, cell: (run) => number(run.reward_mean) },
    { label: "Begun", cell: (run) => el("span", { class: "small line" }, when(run.started_ms ?? run.created_ms)) },
    { label: "Took", number: true, cell: (run) => duration(run.started_ms ? took(run) : null) },
  ];

  // Whether there may be earlier ones.
  async function read(before) {
    const { runs } = await get(`/v1/runs?limit=${AT_ONCE}${before}`, { signal: stopping.signal });
    for (const run of runs) known.set(Number(run.id.slice(1)), run);
    return runs.length === AT_ONCE;
  }

  async function showEarlier() {
    more = await read(`&before=r${Math.min(...known.keys())}`);
    show();
  }

  async function load() {
    const first = !known.size, full = await read("");
    if (first) more = full;
    if (list.contains(document.activeElement) && document.activeElement !== document.body) return;
    show();
  }

  function show() {
    const runs = [...known].sort((a, b) => b[0] - a[0]).map(([, run]) => run);
    earlier.classList.toggle("hidden", !more);
    fill(list, runs.length ? table(columns, runs, { caption: "Runs", picked: (run) => go(`#/${run.id}/overview`) })
      : [el("h2", {}, "No runs yet"), el("p", {}, "Start one from the form, or post a configuration. Those of the demo: a supervised warm-up first, then reinforcement learning, which goes on with its weights:"),
        el("pre", { class: "mono wrap" }, ["warmup", "grpo"].map((name) => `curl -X POST ${location.origin}/v1/runs -d @deploy/demo/runs/${name}.json`).join("\n"))]);
  }

  await load();
  const timer = setInterval(() => document.hidden || load().catch((error) => aborted(error) || fill(list, note(error.message, "bad"))), AGAIN_MS);
  return {
    unmount() {
      clearInterval(timer);
      stopping.abort();
    },
  };
}
