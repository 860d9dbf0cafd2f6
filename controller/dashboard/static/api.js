// The controller's API from a page: requests with the token of this tab, and the event stream.
const KEY = "akc-token";

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

export class Refused extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    Object.assign(this, { status, title });
  }
}

const ANSWER = 10_000, SILENCE = 45_000; // ms: for an answer; without a byte of a stream that says something every 15 s

const headers = () => (token.get() ? { Authorization: `Bearer ${token.get()}` } : {});

export async function call(method, path, body) {
  const given = body === undefined ? {} : { "Content-Type": "application/json" };
  const answer = await fetch(path, {
    method, headers: { ...headers(), ...given }, body: body === undefined ? undefined : JSON.stringify(body),
    signal: AbortSignal.timeout(ANSWER),
  });
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

async function refusal(answer) {
  const problem = await answer.json().catch(() => ({}));
  return new Refused(answer.status, problem.title ?? `HTTP ${answer.status}`, problem.detail ?? "");
}

export const get = (path) => call("GET", path);
export const poolPath = (pool) => `/v1/pools/${encodeURIComponent(pool)}`;

// Reads the stream until `signal` aborts; after a cut it goes on behind the last event it saw. EventSource cannot send a
// token, hence by hand.
export async function follow(pool, signal, heard, state) {
  let last = "";
  for (let wait = 250; !signal.aborted; wait = Math.min(2 * wait, 5000)) {
    const silent = new AbortController();
    let why = "", watch = setTimeout(() => silent.abort(), SILENCE);
    const alive = () => { clearTimeout(watch); watch = setTimeout(() => silent.abort(), SILENCE); };
    try {
      const answer = await fetch(`${poolPath(pool)}/events`, {
        signal: AbortSignal.any([signal, silent.signal]), headers: { ...headers(), ...(last ? { "Last-Event-ID": last } : {}) },
      });
      if (!answer.ok) throw await refusal(answer);
      state("live");
      wait = 250;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ; ) {
        const { value, done } = await reader.read();
        if (done) break;
        alive();
        const parts = (rest + value).split(/\r?\n\r?\n/);
        rest = parts.pop();
        for (const part of parts) {
          const fields = Object.fromEntries(part.split(/\r?\n/).filter((l) => l && !l.startsWith(":")).map((line) => {
            const at = line.indexOf(":");
            return [line.slice(0, at), line.slice(at + 1).replace(/^ /, "")];
          }));
          if (fields.id) last = fields.id;
          if (fields.data) heard(fields.event, JSON.parse(fields.data));
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused) why = error.message;
    } finally {
      clearTimeout(watch);
    }
    state("cut", why);
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}
