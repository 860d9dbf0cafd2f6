// Building pages out of text: what comes from the API is only ever text, never markup.
export function h(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// Draws the inside of a node anew. Whoever was there by keyboard stays there, on what has the same key or words.
export function fill(node, ...children) {
  const held = node.contains(document.activeElement) ? document.activeElement : null;
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
  if (held && held !== node) twin(node, held)?.focus({ preventScroll: true });
}

const mark = (node) => node.dataset.key ?? `${node.getAttribute("href")} ${node.textContent}`;

// What stands in `root` now where `old` stood before it was drawn anew.
export const twin = (root, old) => [...root.querySelectorAll(old.tagName)].find((node) => mark(node) === mark(old));

export const number = (value, digits = 0) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
export const unit = (value, digits, name) => (value === null || value === undefined ? "–" : `${number(value, digits)}${name}`);
export function percent(value, digits = 0) {
  if (value === null || value === undefined) return "–";
  const least = 10 ** -digits;
  return value > 0 && 100 * value < least / 2 ? `<${number(least, digits)}%` : `${number(100 * value, digits)}%`;
}
export const ratio = (i) => (i ? `${i.value.toFixed(2)}× (${i.low.toFixed(2)}–${i.high.toFixed(2)})` : "–");
export const day = (seconds) => new Date(1000 * seconds).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
export function ago(seconds) {
  if (seconds < 1) return "now";
  for (const [size, limit, unit] of [[1, 60, "s"], [60, 3600, "min"], [3600, 86400, "h"]])
    if (seconds < limit) return `${Math.floor(seconds / size)} ${unit} ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

// columns: [title, cell(row), right-aligned]
export function table(caption, columns, rows, rowClass = () => null) {
  return h("div", { class: "scroll" }, h("table", { "aria-label": caption },
    h("thead", {}, h("tr", {}, columns.map(([title, , right]) => h("th", { scope: "col", class: right ? "n" : null }, title)))),
    h("tbody", {}, rows.map((row) => h("tr", { class: rowClass(row) },
      columns.map(([, cell, right]) => h("td", { class: right ? "n" : null }, cell(row))))))));
}

export const card = (kind, title, ...children) => h("section", { class: `card ${kind}` }, title && h("h2", {}, title), ...children);
