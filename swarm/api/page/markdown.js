// Markdown as DOM nodes. Text of a model is only ever put into text nodes, so nothing in it can become markup:
// HTML shows as what it is, links go to http, https and mailto only, images become links.

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^\s{0,3}>\s?(.*)$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const INLINE = /(`+)([^]*?[^`])\1(?!`)|!?\[([^\]\n]*)\]\(([^\s()]*(?:\([^\s()]*\)[^\s()]*)*)\)|(\*\*|__)(?=\S)([^]*?\S)\5|([*_])(?=\S)([^]*?\S)\7|~~(?=\S)([^]*?\S)~~|(https?:\/\/[^\s<>"')\]]+)/;
const DEEPEST = 8;

export function element(name, children = [], attributes = {}) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function safeAddress(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(text, address, depth) {
  const href = safeAddress(address);
  const children = inline(text || address, depth + 1);
  if (href === null) return [...children, ` (${address})`];
  return [element("a", children, { href, rel: "noopener noreferrer nofollow", target: "_blank" })];
}

function inline(text, depth = 0) {
  const nodes = [];
  while (text) {
    const found = depth < DEEPEST ? INLINE.exec(text) : null;
    if (!found) {
      nodes.push(text);
      break;
    }
    const inWord = found[7] === "_" && /\w/.test(text[found.index - 1] ?? "");
    if (inWord) {
      nodes.push(text.slice(0, found.index + 1));
      text = text.slice(found.index + 1);
      continue;
    }
    if (found.index) nodes.push(text.slice(0, found.index));
    if (found[1]) nodes.push(element("code", [found[2].trim()]));
    else if (found[4] !== undefined) nodes.push(...link(found[3], found[4], depth));
    else if (found[5]) nodes.push(element("strong", inline(found[6], depth + 1)));
    else if (found[7]) nodes.push(element("em", inline(found[8], depth + 1)));
    else if (found[9] !== undefined) nodes.push(element("s", inline(found[9], depth + 1)));
    else nodes.push(...link(found[10], found[10], DEEPEST));
    text = text.slice(found.index + found[0].length);
  }
  return nodes;
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

function table(lines) {
  const row = (line, name) => element("tr", cells(line).map((cell) => element(name, inline(cell))));
  return element("table", [
    element("thead", [row(lines[0], "th")]),
    element("tbody", lines.slice(2).map((line) => row(line, "td"))),
  ]);
}

function list(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const ordered = /\d/.test(first[2]);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= first[1].length + 1) items.push([item[3]]);
    else items.at(-1).push(line.replace(new RegExp(`^\\s{0,${first[1].length + first[2].length + 1}}`), ""));
  }
  const made = element(ordered ? "ol" : "ul", items.map((item) => element("li", tight(item, depth + 1))));
  if (ordered) made.setAttribute("start", parseInt(first[2], 10));
  return made;
}

function tight(lines, depth) {
  const nodes = blocks(lines, depth);
  const first = nodes[0];
  return first && first.tagName === "P" ? [...first.childNodes, ...nodes.slice(1)] : nodes;
}

function blocks(lines, depth = 0) {
  const nodes = [];
  let at = 0;
  const take = (while_) => {
    const from = at;
    while (at < lines.length && while_(lines[at])) at += 1;
    return lines.slice(from, at);
  };
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (!line.trim()) at += 1;
    else if (fence) {
      at += 1;
      const code = take((next) => !next.trim().startsWith(fence[1]));
      at += 1;
      nodes.push(element("pre", [element("code", [code.join("\n")])]));
    } else if (HEADING.test(line)) {
      const [, marks, text] = HEADING.exec(line);
      nodes.push(element(`h${Math.min(6, marks.length + 2)}`, inline(text)));
      at += 1;
    } else if (RULE.test(line)) {
      nodes.push(element("hr"));
      at += 1;
    } else if (depth < DEEPEST && QUOTE.test(line)) {
      const quoted = take((next) => QUOTE.test(next)).map((next) => QUOTE.exec(next)[1]);
      nodes.push(element("blockquote", blocks(quoted, depth + 1)));
    } else if (depth < DEEPEST && ITEM.test(line)) {
      nodes.push(list(take((next) => ITEM.test(next) || /^\s+\S/.test(next)), depth));
    } else if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "")) {
      nodes.push(table(take((next) => next.includes("|"))));
    } else {
      const from = at;
      at += 1;
      take((next) => next.trim() && !FENCE.test(next) && !HEADING.test(next) && !QUOTE.test(next) && !ITEM.test(next));
      nodes.push(element("p", inline(lines.slice(from, at).join("\n"))));
    }
  }
  return nodes;
}

export function markdown(text) {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"));
}
