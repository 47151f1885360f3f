// The server's API: requests with the key, and a reply as it is streamed.

export class Locked extends Error {}

let key = sessionStorage.getItem("key") ?? "";

export function unlock(given) {
  key = given;
  sessionStorage.setItem("key", given);
}

export async function ask(path, body, signal) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const request = { headers, signal };
  if (body !== undefined) {
    request.method = "POST";
    request.body = JSON.stringify(body);
    headers["content-type"] = "application/json";
  }
  const response = await fetch(path, request);
  if (response.status === 401) throw new Locked("This server needs its key.");
  if (!response.ok) {
    const told = await response.json().catch(() => null);
    throw new Error(told?.error?.message ?? `The server answered ${response.status}.`);
  }
  return response;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;
      const data = part.slice(6);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

export async function* reply(model, messages, signal) {
  const options = { include_usage: true };
  const response = await ask("v1/chat/completions", { model, messages, stream: true, stream_options: options }, signal);
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) yield { usage: event.usage };
    const choice = event.choices?.[0];
    if (choice?.delta?.reasoning_content) yield { thought: choice.delta.reasoning_content };
    if (choice?.delta?.content) yield { text: choice.delta.content };
  }
}
