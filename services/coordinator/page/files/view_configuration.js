// The run's configuration, every default resolved, as it was hashed.
import { el, fill, viewHead } from "./dom.js";

export function mount(root, { data, go }) {
  const { config, config_hash } = data.status;
  const again = () => {
    sessionStorage.setItem("leasehold-draft", JSON.stringify(config));
    go("#/start");
  };
  const copy = (event) => navigator.clipboard?.writeText(JSON.stringify(config, null, 2)).then(() => fill(event.target, "Copied"));
  fill(root, viewHead("Configuration", "As it was resolved: what the run's configuration left out has its default here.", el("button", { on: { click: copy } }, "Copy"), el("button", { on: { click: again } }, "Start another like it")),
    el("section", { class: "panel" }, el("p", { class: "quiet small" }, "Hash ", el("span", { class: "mono wrap" }, config_hash)), el("pre", { class: "mono wrap", style: { margin: 0 } }, JSON.stringify(config, null, 2))));
}
