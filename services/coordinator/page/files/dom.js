// Makes elements.  Text becomes text nodes and nothing else: whatever a model or a dataset has written, it is never markup.

const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "open", "indeterminate"]);

// attributes: names and values; false and null leave one out; `on` is an object of listeners.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (PROPERTIES.has(name)) node[name] = value;
    else if (name === "style") for (const [property, text] of Object.entries(value)) node.style.setProperty(property, text);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

export function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// The head of a view: its name, a sentence about it, and its controls.
export function viewHead(title, about, ...tools) {
  return el("div", { class: "head" }, el("div", {}, el("h1", {}, title), el("p", { class: "quiet" }, about)), tools.length ? el("div", { class: "tools" }, tools) : null);
}

export function tile(label, value, more) {
  return el("div", { class: "tile" }, el("dt", {}, label), el("dd", {}, value), more ? el("dd", { class: "small" }, more) : null);
}

export function note(text, kind = "") {
  return el("p", { class: `note ${kind}`, role: kind === "bad" ? "alert" : "status" }, text);
}

export function field(label, control) {
  return el("label", { class: "field" }, label, control);
}

export function choice(options, value, changed) {
  return el("select", { on: { change: (event) => changed(event.target.value) } }, options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)));
}

// columns: [{label, number, cell(row)}]; cell gives text or a node.
export function table(columns, rows, { caption, picked } = {}) {
  const line = (row) => el("tr", picked ? { class: "pick", on: { click: (event) => event.target.closest("a, button") || picked(row) } } : {},
    columns.map((column) => el("td", { class: column.number ? "number" : null }, column.cell(row))));
  return el("table", {}, caption ? el("caption", { class: "sr" }, caption) : null,
    el("thead", {}, el("tr", {}, columns.map((column) => el("th", { class: column.number ? "number" : null, scope: "col" }, column.label)))),
    el("tbody", {}, rows.map(line)));
}

// The colour that a variable of page.css has now, for canvases.
const probe = document.createElement("span");
export function colour(name) {
  if (!probe.isConnected) {
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

export function fade(rgb, alpha) {
  const parts = rgb.match(/[\d.]+/g) || [0, 0, 0];
  return `rgba(${parts[0]}, ${parts[1]}, ${parts[2]}, ${alpha})`;
}
