// The page's shell: finds the view that the address names, shows the run's state above it, and keeps both current.
//
// Addresses: #/ all runs; #/r2/reward a view of a run; #/compare?runs=r1,r2; #/start.  A view is a module with a function
// mount(root, {data, params, parts, go}) that returns {update, unmount}; update is called when the run has changed.
import { ApiError, aborted, onUnauthorized, post, setToken } from "./api.js";
import { redrawAll } from "./charts.js";
import { el, fill, note } from "./dom.js";
import { count, duration } from "./format.js";
import { RunData } from "./run_data.js";
import { stateChip } from "./state_chip.js";
import { mount as compare } from "./view_compare.js";
import { mount as configuration } from "./view_configuration.js";
import { mount as group } from "./view_group.js";
import { mount as groups } from "./view_groups.js";
import { mount as lengths } from "./view_lengths.js";
import { mount as mismatch } from "./view_mismatch.js";
import { mount as overview } from "./view_overview.js";
import { mount as policy } from "./view_policy.js";
import { mount as reward } from "./view_reward.js";
import { mount as rollouts } from "./view_rollouts.js";
import { mount as runs } from "./view_runs.js";
import { mount as start } from "./view_start.js";
import { mount as timeline } from "./view_timeline.js";
import { mount as versions } from "./view_versions.js";

const VIEWS = [
  ["overview", "Overview", overview],
  ["reward", "Reward", reward],
  ["groups", "Groups", groups],
  ["lengths", "Lengths", lengths],
  ["policy", "Policy", policy],
  ["mismatch", "Mismatch", mismatch],
  ["versions", "Versions", versions],
  ["timeline", "Timeline", timeline],
  ["rollouts", "Rollouts", rollouts],
  ["configuration", "Configuration", configuration],
];
const ELSEWHERE = { runs, compare, start };
const bar = document.getElementById("bar");
const tabs = document.getElementById("tabs");
const content = document.getElementById("content");
let data = null; // of the run that the address names
let view = null; // that is mounted
let place = 0; // counts navigations: what an older one waited for is dropped
let refused = null; // why the last button's call was refused

function go(hash) {
  location.hash = hash;
}

// --- light and dark ---

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem("leasehold-theme", theme);
  redrawAll();
  view?.restyle?.();
}

function themeButton() {
  const order = ["system", "light", "dark"];
  const now = localStorage.getItem("leasehold-theme") || "system";
  const next = order[(order.indexOf(now) + 1) % order.length];
  return el("button", { title: `Colours: ${now}; press for ${next}`, "aria-label": `Colours: ${now}. Change to ${next}`, on: { click: () => (setTheme(next), showBar()) } }, { system: "◐", light: "☀", dark: "☾" }[now], el("span", { class: "theme" }, ` ${now}`));
}

// --- the bar ---

async function act(verb, question) {
  if (question && !confirm(question)) return;
  refused = null;
  try {
    data.heard("state", await post(`/v1/runs/${data.id}/${verb}`));
  } catch (error) {
    if (!(error instanceof ApiError)) data.fail(error);
    else if (error.status !== 401) refused = `The coordinator refused to ${verb} ${data.id}: ${error.message}`;
  }
  showBar();
}

// A run that waits in the queue cannot be paused.
function controls(state) {
  if (["completed", "stopped", "failed", "stopping"].includes(state)) return [];
  return [
    state === "paused" ? el("button", { on: { click: () => act("resume") } }, "Resume") : null,
    ["starting", "running"].includes(state) ? el("button", { on: { click: () => act("pause") } }, "Pause") : null,
    el("button", { class: "danger", on: { click: () => act("stop", `Stop run ${data.id} for good? It cannot be resumed; its checkpoints stay.`) } }, "Stop"),
  ];
}

function showBar() {
  const now = el("div", { class: "now" });
  if (data?.status) {
    const { state, round, rounds, name, eta_ms } = data.status;
    const done = data.rounds.length;
    now.append(el("strong", {}, data.id), name ? el("span", { class: "name", title: name }, name) : "", stateChip(state));
    if (rounds) now.append(el("div", { class: "progress", role: "progressbar", "aria-label": "Rounds done", "aria-valuemin": 0, "aria-valuemax": rounds, "aria-valuenow": Math.min(done, rounds) }, el("div", { style: { width: `${100 * Math.min(1, done / rounds)}%` } })),
      el("span", { class: "quiet small" }, `${count(done)} of ${count(rounds)} rounds${state === "running" && eta_ms !== null && round !== null ? `, ${duration(eta_ms)} to go` : ""}`));
    now.append(...controls(state).filter(Boolean));
  }
  fill(bar, el("a", { class: "brand", href: "#/" }, el("img", { src: "/page/icon.svg", alt: "" }), "Leasehold"), now,
    el("a", { href: "#/compare" }, "Compare"), el("a", { href: "#/start" }, "Start a run"), themeButton(), refused ? note(refused, "bad") : null);
}

function showTabs(id, name) {
  fill(tabs, id ? VIEWS.map(([key, label]) => el("a", { href: `#/${id}/${key}`, "aria-current": key === name || (key === "rollouts" && name === "group") ? "page" : null }, label)) : []);
  tabs.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

// --- trouble ---

function explain(error) {
  if (error instanceof ApiError && error.status === 401) return;
  fill(content, note(error.message, "bad"), el("p", {}, el("a", { href: "#/" }, "All runs")));
}

function askForToken(wasRefused) {
  const input = el("input", { type: "password", autocomplete: "current-password", id: "token" });
  const submitted = (event) => {
    event.preventDefault();
    setToken(input.value.trim());
    show();
  };
  view?.unmount?.();
  view = null;
  fill(content, el("form", { class: "panel", on: { submit: submitted } }, el("h1", {}, "A token, please"),
    wasRefused ? note("The coordinator has refused this token.", "bad") : null,
    el("p", { class: "quiet" }, "This coordinator was started with --auth-token, or with --token-dir, where a viewer's token is enough to look. The token is kept in this tab until it is closed, and sent to this coordinator only."),
    el("div", { class: "tools" }, el("label", { class: "field" }, "Token", input), el("button", { class: "main" }, "Continue"))));
  input.focus();
}
onUnauthorized(askForToken);

// --- finding the view ---

function parseHash() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean);
  return { parts, params: new URLSearchParams(query) };
}

async function openRun(id) {
  if (data?.id === id) return;
  data?.stop();
  data = null;
  const opened = new RunData(id);
  await opened.start();
  data = opened;
  data.onChange(changed);
}

function changed() {
  showBar();
  view?.update?.();
}

async function show() {
  const mine = ++place;
  refused = null;
  const { parts, params } = parseHash();
  const isRun = /^r\d+$/.test(parts[0] || "");
  const name = isRun ? parts[1] || "overview" : parts[0] || "runs";
  try {
    if (isRun) await openRun(parts[0]);
    else {
      data?.stop();
      data = null;
    }
    if (mine !== place) return;
    view?.unmount?.();
    view = null;
    showBar();
    showTabs(isRun ? parts[0] : null, name);
    const mount = isRun ? (name === "group" ? group : VIEWS.find(([key]) => key === name)?.[2]) : ELSEWHERE[name];
    document.title = isRun ? `${parts[0]} ${name} · Leasehold` : `${name} · Leasehold`;
    if (!mount) throw new Error(`There is no view ${name}.`);
    const mounted = mount(content, { data, params, parts, go });
    view = mounted instanceof Promise ? await mounted : mounted;
    content.dataset.shows = location.hash; // what is shown is what the address says
  } catch (error) {
    if (!aborted(error) && mine === place) explain(error);
  }
}

// --- keys ---

function typed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const at = "1234567890".indexOf(event.key);
  if (at >= 0 && data && VIEWS[at]) go(`#/${data.id}/${VIEWS[at][0]}`);
  else if (event.key === "r") go("#/");
  else if (event.key === "t") (setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"), showBar());
}

fill(document.getElementById("foot"), el("span", { class: "keys" }, el("kbd", {}, "1"), "–", el("kbd", {}, "0"), " views  ", el("kbd", {}, "r"), " runs  ", el("kbd", {}, "t"), " light or dark"));
setTheme(localStorage.getItem("leasehold-theme") || "system");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (redrawAll(), view?.restyle?.()));
addEventListener("hashchange", () => (window.scrollTo(0, 0), show()));
addEventListener("keydown", typed);
showBar();
show();
