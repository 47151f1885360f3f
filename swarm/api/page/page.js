// The page: one conversation, asked and answered, and what is around it.

import { element, markdown } from "./markdown.js";
import { show } from "./swarm.js";
import { Locked, ask, reply, unlock } from "./talk.js";

const LOOK_MS = 3000;
const at = (id) => document.getElementById(id);
const hint = at("talk").firstElementChild;
let messages = [];
let running = null;

function guarded(work) {
  return async (...given) => {
    try {
      await work(...given);
    } catch (error) {
      if (error instanceof Locked) at("locked").showModal();
      else at("speed").textContent = `${error.message}`;
    }
  };
}

function modelOption(model) {
  const state = model.missing ? " (incomplete)" : model.loaded ? " (loaded)" : "";
  return element("option", [model.id + state], { value: model.id });
}

const listModels = guarded(async () => {
  const { data } = await (await ask("v1/models")).json();
  const chosen = at("model").value || (data.find((model) => model.loaded) ?? data[0])?.id;
  at("model").replaceChildren(...data.map(modelOption));
  if (chosen) at("model").value = chosen;
  if (!data.length) at("speed").textContent = "This swarm has no models yet.";
});

const look = guarded(async () => {
  if (!at("state").hidden && !document.hidden) show(await (await ask("v1/swarm")).json());
});

function turn(kind, label) {
  const made = element("article", [], { class: `turn ${kind}`, "aria-label": label });
  at("talk").append(made);
  return made;
}

function nearEnd() {
  const talk = at("talk");
  return talk.scrollHeight - talk.scrollTop - talk.clientHeight < 80;
}

function busy(is) {
  at("stop").disabled = !is;
  at("send").disabled = is;
  at("talk").setAttribute("aria-busy", `${is}`);
}

async function answer(box, controller, conversation) {
  const model = at("model").value;
  const said = { role: "assistant", content: "" };
  const thought = element("p", [], { class: "thought" });
  const thinking = element("details", [element("summary", ["Thoughts"]), thought]);
  const body = element("div");
  let tokens = 0;
  let first = 0;
  let drawn = true;
  const draw = () => {
    const follow = nearEnd();
    body.replaceChildren(...markdown(said.content));
    if (follow) at("talk").scrollTop = at("talk").scrollHeight;
    drawn = true;
  };
  box.append(body);
  const begun = performance.now();
  try {
    for await (const piece of reply(model, conversation, controller.signal)) {
      first ||= performance.now();
      if (piece.thought) {
        if (!thinking.isConnected) box.prepend(thinking);
        thought.append(piece.thought);
      }
      if (piece.text) {
        said.content += piece.text;
        if (drawn) requestAnimationFrame(draw);
        drawn = false;
      }
      tokens = piece.usage?.completion_tokens ?? tokens + 1;
      const seconds = (performance.now() - first) / 1000;
      const rate = tokens > 1 && seconds > 0 ? `, ${((tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
      at("speed").textContent = `${tokens} tokens${rate}, first after ${((first - begun) / 1000).toFixed(2)} s`;
    }
  } finally {
    draw();
    if (said.content) conversation.push(said);
  }
}

async function send() {
  const words = at("words").value.trim();
  if (!words || running) return;
  running = new AbortController();
  busy(true);
  hint.remove();
  at("words").value = "";
  at("speed").textContent = "Waiting for the first token …";
  const asked = turn("user", "You");
  asked.textContent = words;
  const conversation = messages;
  conversation.push({ role: "user", content: words });
  const before = conversation.length;
  const box = turn("assistant", "Answer");
  at("talk").scrollTop = at("talk").scrollHeight;
  try {
    await answer(box, running, conversation);
  } catch (error) {
    if (error.name === "AbortError") at("speed").textContent += ", stopped";
    else {
      box.append(element("p", [error.message], { class: "failed", role: "alert" }));
      if (conversation.length === before) conversation.pop();
      if (error instanceof Locked) at("locked").showModal();
    }
  } finally {
    running = null;
    busy(false);
    at("words").focus();
    listModels();
  }
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
at("words").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
at("stop").addEventListener("click", () => running?.abort());
at("fresh").addEventListener("click", () => {
  running?.abort();
  messages = [];
  at("talk").replaceChildren(hint);
  at("speed").textContent = "";
  at("words").focus();
});
at("network").addEventListener("click", () => {
  const open = at("state").hidden;
  at("state").hidden = !open;
  at("network").setAttribute("aria-expanded", `${open}`);
  look();
});
at("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  unlock(at("key").value);
  at("locked").close();
  listModels();
});
listModels();
setInterval(look, LOOK_MS);
