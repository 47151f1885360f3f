// The state of the swarm: its peers as a table, and how many hold each expert as a picture with a caption.

import { element } from "./markdown.js";

const STEPS = ["--bad", "--line", "--quiet", "--accent"];

export function size(count) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (count < 1000) return `${count < 10 && unit !== "B" ? count.toFixed(1) : Math.round(count)} ${unit}`;
    count /= 1000;
  }
  return `${count.toFixed(1)} TB`;
}

function told(state) {
  const work = `${state.running} of ${state.slots} slots in use, ${state.waiting} waiting`;
  if (state.link === "local") return `Models are on this machine. ${work}.`;
  const where = state.link === "online" ? `Online at ${state.address}` : `Offline: ${state.problem}`;
  const calls = state.calls ? `, ${state.remote_calls} of ${state.calls} expert calls by peers` : "";
  return [`${where}. ${size(state.fetched_bytes)} fetched${calls}. ${work}.`, ...(state.news ?? [])].join(" ");
}

export function show(state) {
  document.getElementById("link").textContent = told(state);
  document.getElementById("peers").replaceChildren(
    ...state.peers.map((peer) =>
      element("tr", [peer.name, peer.role, size(peer.bytes), `${peer.calls}`, peer.state].map((text) => element("td", [text]))),
    ),
  );
  draw(state.experts);
}

function draw(experts) {
  const canvas = document.getElementById("experts");
  const caption = document.getElementById("experts-told");
  const cells = experts.flat();
  canvas.hidden = cells.length === 0;
  if (!cells.length) {
    caption.textContent = "No peer runs experts now; all run here.";
    return;
  }
  const held = cells.filter((count) => count > 0).length;
  caption.textContent = `${held} of ${cells.length} experts are held by peers, ${cells.filter((count) => count > 1).length} by several.`;
  const style = getComputedStyle(document.documentElement);
  canvas.width = Math.max(...experts.map((layer) => layer.length));
  canvas.height = experts.length;
  canvas.style.height = `${Math.min(320, 6 * experts.length)}px`;
  const pen = canvas.getContext("2d");
  experts.forEach((layer, y) =>
    layer.forEach((count, x) => {
      pen.fillStyle = style.getPropertyValue(STEPS[Math.min(count, STEPS.length - 1)]);
      pen.fillRect(x, y, 1, 1);
    }),
  );
}
