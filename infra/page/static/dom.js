// Elements are made here only, and text only ever becomes text: nothing that arrives is read as markup.

export const byId = (id) => document.getElementById(id);

/** An element; `props` are properties, or attributes where the name holds a dash or is `role`. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.includes("-") || name === "role" || name === "scope") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Set a text, touching the page only when it differs. */
export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

/** Set a property, touching the page only when it differs. */
export function set(node, name, value) {
  if (node[name] !== value) node[name] = value;
}

/** A colour of the theme in force. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
