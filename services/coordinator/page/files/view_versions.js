// Versions of the weights: their digests, who has loaded which, and how old what was trained on was.
import { aborted, get } from "./api.js";
import { el, fill, table, tile } from "./dom.js";
import { count, digest, duration, number } from "./format.js";
import { roundCharts } from "./round_charts.js";

const AGAIN_MS = 2000;
const SHOWN = 100;

const inner = roundCharts({
  title: "Versions and lag",
  about: "Each round's step makes the next version. A digest names weights byte for byte: equal digests are equal weights, wherever they were computed.",
  tiles: (rounds, status) => [
    tile("Current version", status.version === null ? "–" : count(status.version), digest(status.weights_digest)),
    tile("Distinct digests", count(new Set(rounds.map((round) => round.digest)).size), `of ${count(rounds.length)} rounds shown`),
    tile("Publishing takes", duration(rounds.at(-1)?.publish_ms), "newest round"),
    tile("Step and checkpoint", duration(rounds.at(-1)?.step_ms), "newest round"),
  ],
  charts: [
    { title: "Lag of trained tokens", about: "Versions between the one that drew a token and the one that a step trains it with. Only mode inflight has any.", show: number, min: 0,
      series: [{ key: "max", label: "most", colour: "--c2", dash: "dashed" }, { key: "mean", label: "mean", colour: "--c1" }, { key: "min", label: "least", colour: "--c3", dash: "dotted" }],
      columns: (rounds) => ({ min: rounds.map((r) => r.lag?.min ?? null), mean: rounds.map((r) => r.lag?.mean ?? null), max: rounds.map((r) => r.lag?.max ?? null) }) },
    { title: "Publishing", about: "Step with checkpoint, then the push to the servers.", show: (v) => duration(v), min: 0,
      series: [{ key: "step", label: "step and checkpoint", colour: "--c4" }, { key: "push", label: "push", colour: "--c1", dash: "dashed" }],
      columns: (rounds) => ({ step: rounds.map((r) => r.step_ms), push: rounds.map((r) => r.publish_ms) }) },
  ],
});

export function mount(root, context) {
  const { data } = context;
  const stopping = new AbortController();
  const workersBox = el("section", { class: "panel across" });
  const versionsBox = el("section", { class: "panel" });
  const charts = el("div", { style: { display: "contents" } });
  let workers = [];
  fill(root, charts, workersBox, versionsBox);
  const view = inner(charts, context);

  const made = () => data.rounds.filter((round) => round.digest).map((round) => ({ version: round.version + 1, digest: round.digest, round })).reverse();
  const versionOf = (hex) => {
    if (!hex) return "nothing";
    const found = made().find((version) => version.digest === hex);
    if (found) return `v${found.version}`;
    return hex === data.status.weights_digest ? `v${data.status.version}` : "other weights";
  };
  const holders = (hex) => workers.filter((worker) => worker.loaded_digest === hex).map((worker) => worker.name).join(", ");

  function showTables() {
    fill(workersBox, el("h2", {}, "Who has loaded which"), workers.length ? table([
      { label: "Worker", cell: (w) => w.name },
      { label: "Kind", cell: (w) => (w.role ? `${w.kind}, ${w.role}` : w.kind) },
      { label: "State", cell: (w) => (w.draining ? "draining" : w.ready ? "ready" : "not ready") },
      { label: "Has loaded", cell: (w) => [versionOf(w.loaded_digest), " ", el("span", { class: "mono quiet" }, digest(w.loaded_digest))] },
      { label: "Slots busy", number: true, cell: (w) => (w.kind === "generation" ? `${w.slots_busy} / ${w.slots}` : "–") },
      { label: "Leases", number: true, cell: (w) => count(w.leases) },
      { label: "Tokens sampled", number: true, cell: (w) => count(w.tokens_sampled) },
      { label: "Kernels", cell: (w) => w.exactness },
    ], workers, { caption: "Workers" }) : el("p", { class: "quiet" }, "No worker is registered now."));
    fill(versionsBox, el("h2", {}, "Versions"), el("p", { class: "quiet small" }, `The newest ${SHOWN}.`), el("div", { class: "scroll across", tabindex: 0, role: "group", "aria-label": "Versions" }, table([
      { label: "Version", number: true, cell: (v) => `v${v.version}` },
      { label: "Made by round", number: true, cell: (v) => count(v.round.round) },
      { label: "Digest", cell: (v) => el("span", { class: "mono wrap" }, v.digest) },
      { label: "Loaded by", cell: (v) => holders(v.digest) || "–" },
      { label: "Exact", cell: (v) => (v.round.exact ? "yes" : `no: ${v.round.inexact_reason}`) },
      { label: "Weights changed", cell: (v) => (v.round.skipped ? "no" : "yes") },
    ], made().slice(0, SHOWN), { caption: "Versions" })));
  }
  async function load() {
    workers = (await get("/v1/workers", { signal: stopping.signal })).workers;
    showTables();
  }
  showTables();
  load().catch((error) => aborted(error) || data.fail(error));
  const timer = setInterval(() => document.hidden || data.ended() || load().catch((error) => aborted(error) || data.fail(error)), AGAIN_MS);
  return {
    update: view.update,
    unmount() {
      clearInterval(timer);
      stopping.abort();
      view.unmount();
    },
  };
}
