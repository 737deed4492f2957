// Text and elements. Text reaches the page through textContent alone: markup in names and logs stays text.

export const GIB = 2 ** 30;
const SVG = "http://www.w3.org/2000/svg";

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function svg(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// These write only what differs, so that a quiet row costs no layout. What was written last is kept in memory: to read it from the page
// takes longer than all else.
const texts = new WeakMap();
const attributes = new WeakMap();

export function setText(node, text) {
  if (texts.get(node) === text) return;
  texts.set(node, text);
  node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (!attributes.has(node)) attributes.set(node, {});
  if (attributes.get(node)[name] === value) return;
  attributes.get(node)[name] = value;
  node.setAttribute(name, value);
}

export function gib(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const amount = bytes / GIB;
  return amount >= 100 ? amount.toFixed(0) : amount >= 10 || amount === 0 ? trim(amount.toFixed(1)) : trim(amount.toFixed(2));
}

const trim = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

export function duration(seconds) {
  const total = Math.max(0, Math.floor(seconds));
  const parts = [[Math.floor(total / 86400), "d"], [Math.floor(total / 3600) % 24, "h"], [Math.floor(total / 60) % 60, "m"], [total % 60, "s"]];
  return parts.filter(([amount]) => amount).slice(0, 2).map(([amount, unit]) => amount + unit).join(" ") || "0s";
}

export function short(seconds) {
  if (seconds === null) return "–";
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
}

export const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`);
