// Calls to the coordinator's API, with the token where there is one.  Every call of the page goes through here.

let token = sessionStorage.getItem("leasehold-token") || "";
let unauthorized = () => {};

export class ApiError extends Error {
  constructor(status, message, field) {
    super(message);
    this.status = status;
    this.field = field;
  }
}

export function setToken(text) {
  token = text;
  sessionStorage.setItem("leasehold-token", text);
}

// What to do when a call lacks a valid token; listener(refused): one was sent.
export function onUnauthorized(listener) {
  unauthorized = listener;
}

async function request(method, path, { body, signal } = {}) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal, cache: "no-store" });
  if (answer.ok) return answer;
  let error = {};
  try {
    error = (await answer.json()).error;
  } catch {
    // not from the coordinator: the status says enough
  }
  if (answer.status === 401) unauthorized(Boolean(headers.Authorization));
  throw new ApiError(answer.status, error.message || `${method} ${path} was answered ${answer.status}`, error.field);
}

export async function get(path, options) {
  return (await request("GET", path, options)).json();
}

export async function post(path, body = {}) {
  return (await request("POST", path, { body })).json();
}

// Server-sent events through fetch, because EventSource cannot send a token.  opened: called when events are being listened to.
export async function events(path, { signal, opened, heard }) {
  const answer = await request("GET", path, { signal });
  opened();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const event = { type: "message", data: "" };
      for (const line of text.slice(0, end).split("\n")) {
        if (line.startsWith("event: ")) event.type = line.slice(7);
        if (line.startsWith("data: ")) event.data += line.slice(6);
      }
      if (event.data) heard(event.type, JSON.parse(event.data));
    }
  }
}

export const aborted = (error) => error.name === "AbortError";
