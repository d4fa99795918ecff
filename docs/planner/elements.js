// Elements of the page, made so that text can never become markup.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "g", "rect", "line", "text", "tspan", "title", "desc"]);
const ATTRIBUTES = new Set([
  "class", "viewBox", "role", "font-size", "x", "y", "x1", "x2", "y1", "y2", "width", "height", "text-anchor",
]);

/** An element with attributes and contents; contents are elements or text. */
export function element(name, attributes = {}, ...contents) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...contents);
  return made;
}

export function fill(parent, contents) {
  parent.replaceChildren(...contents);
}

/** A picture that the planner drew, rebuilt from the shapes and attributes that it uses; all else is left out. */
export function drawing(source) {
  const read = new DOMParser().parseFromString(source.replace("<svg ", `<svg xmlns="${SVG}" `), "image/svg+xml");
  const made = rebuilt(read.documentElement);
  const description = read.querySelector("desc");
  if (description) made.setAttribute("aria-label", description.textContent);
  return made;
}

function rebuilt(node) {
  if (node.nodeType === Node.TEXT_NODE) return document.createTextNode(node.nodeValue);
  if (node.namespaceURI !== SVG || !DRAWN.has(node.localName)) return document.createTextNode("");
  const made = document.createElementNS(SVG, node.localName);
  for (const { name, value } of node.attributes) if (ATTRIBUTES.has(name)) made.setAttribute(name, value);
  made.append(...[...node.childNodes].map(rebuilt));
  return made;
}
