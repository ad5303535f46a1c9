// The only place that makes elements. Text becomes text nodes, and attributes are set one by one, so that nothing in a
// message, a name or an error can become markup or script.

const SVG = "http://www.w3.org/2000/svg";
// Where logs are. Every other address, whoever wrote it, stays on this page.
const CONSOLE = /^https:\/\/[a-z0-9-]+\.console\.aws\.amazon\.com\/cloudwatch\/home\?region=[a-z0-9-]+#/;

export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (/^on|^style$|^srcdoc$/i.test(name)) throw new Error(`${name} must not be set from data`);
    if (/^(href|src)$/i.test(name) && !/^(#|\/(?!\/))/.test(value) && !(tag(node) === "a" && CONSOLE.test(value))) throw new Error(`${name} must stay on this page`);
    node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

const tag = (node) => node.nodeName.toLowerCase();

// A link to AWS's console, in a tab of its own: this page goes on.
export function logs(address, words = "Logs") {
  return address && h("a", { href: address, target: "_blank", rel: "noopener noreferrer", class: "logs" }, words);
}

// Make `from` equal to `to`, and change only what differs: focus, selection, open details and typed text stay.
export function morph(from, to) {
  if (from.nodeType === Node.TEXT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && name !== "open") from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value && name !== "open") from.setAttribute(name, value);
  }
  // What somebody else draws, such as a chart, is left to them.
  if (!from.dataset.own) morphChildren(from, [...to.childNodes]);
}

export function morphChildren(parent, wanted) {
  const keyed = new Map();
  for (const child of parent.children) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let here = parent.firstChild;
  for (const want of wanted) {
    const key = want.dataset?.key;
    let match = key ? keyed.get(key) : here;
    if (match && (match.nodeName !== want.nodeName || (!key && match.dataset?.key))) match = null;
    if (!match) {
      parent.insertBefore(want, here);
      continue;
    }
    if (match === here) here = here.nextSibling;
    else parent.insertBefore(match, here);
    morph(match, want);
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}
