// A form for a run: every field of the configuration, as the contract names, bounds and explains it.  What is left empty takes its
// default; the coordinator checks the whole when it is posted, and names the field that it refuses.
import { get, post } from "./api.js";
import { el, fill, note, viewHead } from "./dom.js";

const FIRST = ["name", "dataset", "recipe", "mode", "rounds", "groups_per_round", "samples_per_group", "seed", "start"];
const TITLES = { sampling: "Sampling", verifier: "Reward", advantage: "Advantage", filter: "Filter", training: "Training", evaluation: "Evaluation", keep_best: "Keep the best checkpoints", overlong: "Penalty for length", dataset: "Dataset" };

const typesOf = (schema) => [schema.type || []].flat().filter((type) => type !== "null");
const pathOf = (path, name) => (path ? `${path}.${name}` : name);
const idOf = (path) => `field-${path.replaceAll(".", "-")}`;

function defaultOf(schema) {
  if (schema.default === undefined) return "left out";
  return `default: ${typeof schema.default === "string" ? schema.default : JSON.stringify(schema.default)}`;
}

function boundsOf(schema) {
  const low = schema.minimum !== undefined ? `${schema.minimum}` : schema.exclusiveMinimum !== undefined ? `above ${schema.exclusiveMinimum}` : null;
  const high = schema.maximum !== undefined ? `${schema.maximum}` : schema.exclusiveMaximum !== undefined ? `below ${schema.exclusiveMaximum}` : null;
  if (low === null && high === null) return "";
  return low !== null && high !== null ? `From ${low} to ${high}.` : low !== null ? `At least ${low}.` : `At most ${high}.`;
}

// A control and how its value is read; undefined: left out.  Throws a sentence.
function controlOf(schema, path) {
  const [type] = typesOf(schema);
  const plain = typesOf(schema).length === 1 && !schema.choices;
  const id = idOf(path);
  const options = schema.enum?.filter((value) => value !== null) || (plain && type === "boolean" ? [true, false] : null);
  if (options) {
    const select = el("select", { id }, el("option", { value: "" }, `(${defaultOf(schema)})`), options.map((value) => el("option", { value: JSON.stringify(value) }, String(value))));
    return { node: select, read: () => (select.value ? JSON.parse(select.value) : undefined), write: (value) => (select.value = value === null || value === undefined ? "" : JSON.stringify(value)) };
  }
  if (plain && (type === "integer" || type === "number")) {
    const input = el("input", { id, type: "number", step: type === "integer" ? 1 : "any", placeholder: defaultOf(schema), min: schema.minimum, max: schema.maximum });
    return { node: input, read: () => (input.value === "" ? undefined : Number(input.value)), write: (value) => (input.value = value ?? "") };
  }
  if (plain && type === "string") {
    const input = el("input", { id, type: "text", placeholder: defaultOf(schema) });
    return { node: input, read: () => input.value || undefined, write: (value) => (input.value = value ?? "") };
  }
  if (!plain && schema.choices?.every((one) => ["integer", "string"].includes(typesOf(one)[0]))) {
    const input = el("input", { id, type: "text", placeholder: defaultOf(schema) });
    return { node: input, read: () => (input.value === "" ? undefined : Number.isSafeInteger(Number(input.value)) ? Number(input.value) : input.value), write: (value) => (input.value = value ?? "") };
  }
  const area = el("textarea", { id, rows: 2, class: "mono", placeholder: `JSON, ${defaultOf(schema)}` });
  const words = typesOf(schema).includes("string") || schema.choices?.some((one) => typesOf(one).includes("string"));
  return {
    node: area,
    read: () => {
      const text = area.value.trim();
      if (!text) return undefined;
      try {
        return JSON.parse(text);
      } catch {
        if (words && !/^[[{"]/.test(text)) return text;
        throw new Error(`${path}: this is no JSON`);
      }
    },
    write: (value) => (area.value = value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value)),
  };
}

export async function mount(root, { go }) {
  const schema = await get("/page/run_config.json");
  const fields = new Map(); // path -> control
  const said = el("div", {});
  const preview = el("pre", { class: "mono wrap", style: { margin: 0 } });

  function entry(name, member, path, required) {
    const control = controlOf(member, path);
    fields.set(path, control);
    control.node.addEventListener("input", show);
    const about = [member.description, boundsOf(member)].filter(Boolean).join(" ");
    if (about) control.node.setAttribute("aria-describedby", `${idOf(path)}-about`);
    return el("div", { class: "entry" }, el("label", { for: idOf(path) }, name, required ? " (needed)" : ""), control.node, el("div", { class: "quiet", id: `${idOf(path)}-about` }, about));
  }

  // Members of an object: plain ones first, then those with members of their own.
  function members(object, path, names = Object.keys(object.properties)) {
    const simple = names.filter((name) => !object.properties[name].properties);
    const nested = names.filter((name) => object.properties[name].properties);
    return [simple.map((name) => entry(name, object.properties[name], pathOf(path, name), object.required?.includes(name))),
      nested.map((name) => {
        const member = object.properties[name];
        const body = [member.description ? el("p", { class: "quiet small" }, member.description) : null, members(member, pathOf(path, name))];
        return el("details", { class: path ? "" : "panel", open: name === "dataset" }, el("summary", {}, el("strong", {}, TITLES[name] || name)), body);
      })];
  }

  function config() {
    const made = {};
    for (const [path, control] of fields) {
      const value = control.read();
      if (value === undefined) continue;
      const keys = path.split(".");
      let at = made;
      for (const key of keys.slice(0, -1)) at = at[key] ??= {};
      at[keys.at(-1)] = value;
    }
    return made;
  }

  function show() {
    try {
      fill(preview, `curl -X POST ${location.origin}/v1/runs -d '${JSON.stringify(config(), null, 2)}'`);
    } catch (error) {
      fill(preview, error.message);
    }
  }

  function write(value, path = "") {
    for (const [key, member] of Object.entries(value)) {
      const own = pathOf(path, key);
      if (fields.has(own)) fields.get(own).write(member);
      else if (member && typeof member === "object" && !Array.isArray(member)) write(member, own);
    }
  }

  function refuse(error) {
    const path = [...fields.keys()].find((key) => key === error.field) || [...fields.keys()].find((key) => error.field && error.field.startsWith(`${key}`));
    fill(said, note(!error.field || error.message.includes(error.field) ? error.message : `${error.field}: ${error.message}`, "bad"));
    const node = path && fields.get(path).node;
    if (!node) return said.scrollIntoView({ block: "nearest" });
    for (let up = node.closest("details"); up; up = up.parentElement.closest("details")) up.open = true;
    node.setAttribute("aria-invalid", "true");
    node.focus();
  }

  async function submit(event) {
    event.preventDefault();
    for (const { node } of fields.values()) node.removeAttribute("aria-invalid");
    fill(said);
    try {
      const { id } = await post("/v1/runs", config());
      sessionStorage.removeItem("leasehold-draft");
      go(`#/${id}/overview`);
    } catch (error) {
      refuse(error);
    }
  }

  const file = el("input", { type: "file", accept: ".json,application/json", on: { change: async () => {
    try {
      write(JSON.parse(await file.files[0].text()));
      show();
    } catch (error) {
      fill(said, note(`The file is not a configuration: ${error.message}`, "bad"));
    }
  } } });
  const others = Object.keys(schema.properties).filter((name) => !FIRST.includes(name));
  const advanced = others.filter((name) => !schema.properties[name].properties);
  fill(root, viewHead("Start a run", "Every field of a run's configuration. What is left empty takes its default; what cannot work is refused with a sentence.", el("label", { class: "field" }, "Fill in from a file", file)), said,
    el("form", { on: { submit }, style: { display: "flex", "flex-direction": "column", gap: "14px" } },
      el("section", { class: "panel" }, members(schema, "", FIRST.filter((name) => schema.properties[name]))),
      members(schema, "", others.filter((name) => schema.properties[name].properties)),
      el("details", { class: "panel" }, el("summary", {}, el("strong", {}, "Everything else")), members(schema, "", advanced)),
      el("section", { class: "panel" }, el("h2", {}, "The same as a call"), preview),
      el("div", {}, el("button", { class: "main" }, "Start the run"))));
  const draft = sessionStorage.getItem("leasehold-draft");
  if (draft) write(JSON.parse(draft));
  show();
  return {};
}
