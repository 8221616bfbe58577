// Rollouts of all rounds: filters, a search in prompts and completions, and the way to each group.
import { aborted, get } from "./api.js";
import { choice, el, field, fill, note, table, viewHead } from "./dom.js";
import { count, number } from "./format.js";

const ROWS = 50;
const FILTERS = ["text", "round_min", "round_max", "reward_min", "reward_max", "tokens_min", "finish", "purpose", "group_state"];
const STATES = ["consumed", "filtered", "evaluated", "sealed", "submitted", "open", "failed", "abandoned"];

export function mount(root, { data, params, go }) {
  const stopping = new AbortController();
  const rows = [];
  let next = null;
  let lookedAt = 0;
  let busy = false;
  const list = el("div", { class: "across" });
  const said = el("p", { class: "quiet small", role: "status" });
  const more = el("button", { on: { click: () => load() } }, "Older ones");

  // Without a choice, what is trained on: evaluations would hide it behind every round.
  const trains = data.status.objective !== "evaluate";
  const value = (name) => params.get(name) ?? (name === "purpose" && trains ? "training" : "");
  const input = (name, type, label) => field(label, el("input", { type, name, value: value(name), step: type === "number" ? "any" : null, placeholder: "any" }));
  const select = (name, label, options) => {
    const made = choice([["", "any"], ...options.map((option) => [option, option])], value(name), () => form.requestSubmit());
    made.name = name;
    return field(label, made);
  };
  const search = el("input", { type: "search", name: "text", value: value("text"), placeholder: "part of a prompt or completion", style: { width: "22em" } });
  const form = el("form", { class: "panel", role: "search", on: { submit: (event) => {
    event.preventDefault();
    const chosen = new URLSearchParams();
    for (const [name, text] of new FormData(form)) if (FILTERS.includes(name) && (text || (name === "purpose" && trains))) chosen.set(name, text);
    go(`#/${data.id}/rollouts${chosen.size ? `?${chosen}` : ""}`);
  } } }, el("div", { class: "tools" }, field("Search", search), input("round_min", "number", "From round"), input("round_max", "number", "To round"), input("reward_min", "number", "Reward at least"), input("reward_max", "number", "Reward at most"), input("tokens_min", "number", "Tokens at least"),
    select("finish", "Ended by", ["stop", "length"]), select("purpose", "Purpose", ["training", "evaluation"]), select("group_state", "Group is", STATES), el("button", { class: "main" }, "Search"), el("button", { type: "button", on: { click: () => go(`#/${data.id}/rollouts`) } }, "Clear")));

  const where = (row) => `#/${data.id}/group?id=${row.group}&sample=${row.sample}`;
  const columns = [
    { label: "Rollout", cell: (row) => el("a", { href: where(row), class: "mono" }, row.id) },
    { label: "Round", number: true, cell: (row) => count(row.round) },
    { label: "Prompt", cell: (row) => el("div", { class: "cut" }, row.prompt) },
    { label: "Completion", cell: (row) => el("div", { class: "cut" }, row.text) },
    { label: "Reward", number: true, cell: (row) => number(row.reward) },
    { label: "Advantage", number: true, cell: (row) => number(row.advantage) },
    { label: "Tokens", number: true, cell: (row) => count(row.tokens) },
    { label: "Ended by", cell: (row) => row.finish },
    { label: "Version", number: true, cell: (row) => (row.version === null ? "–" : `v${row.version}`) },
    { label: "Group", cell: (row) => (row.purpose === "evaluation" ? "evaluation" : row.group_state) },
  ];

  function showRows() {
    fill(list, rows.length ? table(columns, rows, { caption: "Rollouts, newest first", picked: (row) => go(where(row)) }) : busy ? [] : note(next ? "Nothing among those that were looked at. Go on with older ones." : "No rollout fits."));
    fill(said, busy ? `Looking: ${count(lookedAt)} rollouts so far` : `${count(rows.length)} shown, ${count(lookedAt)} looked at, newest first${next ? "" : "; these are all"}.`);
    more.classList.toggle("hidden", !next || busy);
  }

  // A page of rows, or the end: a rare text takes several requests.
  async function load() {
    const wanted = rows.length + ROWS;
    busy = true;
    try {
      do {
        const query = new URLSearchParams({ limit: wanted - rows.length });
        for (const name of FILTERS) if (value(name)) query.set(name, value(name));
        if (next) query.set("before", next);
        const answer = await get(`/v1/runs/${data.id}/samples?${query}`, { signal: stopping.signal });
        rows.push(...answer.samples);
        lookedAt += answer.looked_at;
        next = answer.next;
        showRows();
      } while (next && rows.length < wanted);
      busy = false;
      showRows();
    } catch (error) {
      busy = false;
      if (!aborted(error)) fill(list, note(error.message, "bad"));
    }
  }
  fill(root, viewHead("Rollouts", "What was sampled in all rounds whose rollouts are kept, newest first. A row leads to its group."), form, el("section", { class: "panel" }, said, list, el("div", {}, more)));
  load();
  return { unmount: () => stopping.abort() };
}
