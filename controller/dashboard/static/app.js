// The dashboard: a page of pools, of one pool, of one domain; live by the event stream; steering for who may.
import { Refused, call, follow, get, poolPath, token } from "./api.js";
import * as charts from "./charts.js";
import { ago, card, day, fill, h, number, percent, ratio, table, twin, unit } from "./dom.js";

const main = document.getElementById("main");
const dialog = document.getElementById("dialog");
let me = { name: null, role: "read" };
let here = new AbortController();

const href = (pool, domain) => `#/${encodeURIComponent(pool)}${domain === undefined ? "" : `/${encodeURIComponent(domain)}`}`;
const show = (...children) => fill(main, ...children);
const note = (text, kind = "") => h("p", { class: `note ${kind}`, role: "status" }, text);

function failed(error) {
  if (error instanceof Refused && error.status === 401) {
    show(note(token.get() ? "This controller does not know the token." : "This controller asks for a token."), h("button", { class: "main", onclick: signIn }, "Sign in"));
  } else if (error instanceof Refused) {
    const [pool, domain] = place();
    show(note(`${error.title}: ${error.message}`, "bad"), h("p", {}, domain === undefined || error.title === "No such pool"
      ? h("a", { href: "#/" }, "All pools") : h("a", { href: href(pool) }, `Back to ${pool}`)));
  } else show(note(`The controller does not answer (${error.message}). Trying again.`, "bad"));
}

// ---- who

async function identify() {
  me = await get("/v1/whoami").catch(() => ({ name: null, role: null }));
  const button = document.getElementById("who");
  button.textContent = me.name ? `${me.name} (${me.role})` : "Sign in";
  button.onclick = signIn;
}

function ask(title, fields, act, word = "Confirm") {
  const problem = h("p", { class: "problem", role: "alert" });
  const confirm = h("button", { class: "main" }, word), opener = document.activeElement;
  const form = h("form", { method: "dialog", onsubmit: async (event) => {
    event.preventDefault();
    try {
      await act(Object.fromEntries(new FormData(form)));
      dialog.close();
    } catch (error) {
      problem.textContent = error.message;
    }
  } }, h("h2", { id: "dialog-title" }, title), ...fields, problem,
  h("div", { class: "row" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), confirm));
  dialog.replaceChildren(form);
  dialog.showModal();
  // What opened it may have been drawn anew meanwhile.
  dialog.addEventListener("close", () => { if (!opener.isConnected) twin(main, opener)?.focus(); }, { once: true });
  return { form, confirm };
}

const field = (label, name, attributes = {}) => [h("label", { for: `f-${name}` }, label), h("input", { id: `f-${name}`, name, ...attributes })];
const choose = (label, name, options, selected) => [
  h("label", { for: `f-${name}` }, label),
  h("select", { id: `f-${name}`, name }, options.map((o) => h("option", { value: o, selected: String(o) === String(selected) }, String(o)))),
];

function signIn() {
  ask("Sign in", [...field("Token (empty: sign out)", "token", { type: "password", autocomplete: "off" })], async (given) => {
    token.set(given.token);
    await identify();
    route();
  }, "Sign in");
}

// ---- pools

async function poolsPage() {
  const pools = await get("/v1/pools");
  drawNav(pools.map((p) => p.pool));
  if (pools.length === 1) return location.replace(href(pools[0].pool));
  show(h("h1", {}, "Pools"), pools.length
    ? card("", null, table("Pools", [
      ["pool", (p) => h("a", { href: href(p.pool) }, p.pool)], ["role", (p) => p.role], ["problem", (p) => p.problem ?? "none"],
    ], pools))
    : h("p", { class: "quiet" }, "No engine has announced itself yet. Start one with ", h("code", {}, "akc engine"), " or put the plug-in into vLLM."));
  setTimeout(() => { if (!place()[0]) route(); }, 3000);
}

function drawNav(names, current) {
  document.getElementById("pools").replaceChildren(...names.map((name) =>
    h("a", { href: href(name), "aria-current": name === current ? "page" : null }, name)));
}

// ---- one pool

const standby = (summary) => summary.role === "standby";

function notes(summary) {
  const now = Date.now() / 1000;
  return [
    summary.problem && note(summary.problem, "bad"),
    standby(summary) && note("Another replica leads this pool; this one stands by, ready to take over. Figures and steering are at the one that leads."),
    summary.catching_up && note("Catching up: frames of the past are being read, so what you see is old."),
    summary.stale && !summary.catching_up && note(summary.last_frame ? `Stale: the last frame came ${ago(now - summary.last_frame)}.` : "No frame has been read yet."),
  ];
}

function hero(summary) {
  const speedup = summary.traffic?.speedup, goodput = summary.traffic?.tokens_per_busy_second;
  return card("hero", "Speedup over no speculation, last minute",
    h("div", { class: `big ${speedup && speedup.high < 1 ? "loses" : ""}`, id: "speedup" }, speedup ? `${speedup.value.toFixed(2)}×` : "–"),
    h("p", { class: "quiet" }, speedup ? `between ${speedup.low.toFixed(2)} and ${speedup.high.toFixed(2)} with probability 0.9` : unknown(summary)),
    goodput && h("p", { class: "quiet" }, `${number(goodput, 1)} tokens per second of a step${speedup ? `, where no speculation would give about ${number(goodput / speedup.value, 1)}` : ""}`),
    summary.measured_gain ? h("p", { class: "quiet", id: "measured" }, measured(summary.measured_gain)) : "",
    summary.note ? h("p", { class: "quiet", id: "identified" }, `${summary.note[0].toUpperCase()}${summary.note.slice(1)}.`) : "");
}

// Why no speedup is told: it is for loads that the pool has prices for.
function unknown({ traffic }) {
  if (!traffic) return "not known yet: no frame has been learned from";
  if (traffic.tokens === 0) return "nothing was served within the last minute";
  return "not known yet: no step has been timed at some load of the last minute";
}

function measured(gain) {
  const fixed = gain.against[0] === "none" ? "no speculation" : `${gain.against[0]} at K = ${gain.against[1]}`;
  const found = gain.ratio === null ? "no interval yet" : `${gain.ratio.toFixed(2)}× ${fixed} (${gain.low.toFixed(2)} to ${gain.high.toFixed(2)})${gain.running ? " so far" : ""}`;
  return `${gain.running ? `Measuring until ${day(gain.until)}, ${Math.round(100 * gain.share)}% of the time at ${fixed}` : `Measured by switching until ${day(gain.until)}`}: ${found}, ${gain.pairs} of ${gain.planned} pairs`;
}

function facts(summary, orders, steer) {
  const age = summary.policy_expires === null ? "–" : ago(Math.max(0, Date.now() / 1000 - (summary.time ?? 0)));
  const pairs = [
    ["a request gets", unit(summary.traffic?.tokens_per_second, 1, " tokens/s")],
    ["rows of a step", number(summary.traffic?.mean_rows, 1)], ["running / waiting", `${number(summary.running)} / ${number(summary.waiting)}`],
    ["engines", number(summary.engines)], ["exploring", unit(summary.explored === null ? null : 100 * summary.explored, 1, "% of steps")], ["mode", h("span", { class: `tag ${summary.mode === "on" ? "on" : "warn"}` }, summary.mode ?? "–")],
    ["policy decided", age], ["frames behind", unit(summary.frames?.lag_seconds, 1, " s")], ["target", summary.target ?? "–"],
    ["drafts", (summary.drafts ?? []).map((d) => d.draft).join(", ") || "none"],
  ];
  return card("facts", null, h("dl", {}, pairs.map(([name, value]) => h("div", { class: ["target", "drafts"].includes(name) ? "wide" : null }, h("dt", {}, name), h("dd", {}, value)))),
    steer && me.role === "admin" && h("div", { class: "row", style: "margin-top:.8rem" },
      h("button", { onclick: () => modeDialog(summary, orders) }, "Mode …"),
      orders?.pins.length ? h("span", { class: "quiet" }, `${orders.pins.length} pinned`) : null));
}

const fixedArm = ({ draft, k }) => (draft === "none" ? "no speculation" : `${draft} at K = ${k}`);
const share = (value) => `${(100 * value).toFixed(1)}%`;

const FOLLOWED = {
  off: () => "All requests would play the static choice.",
  shadow: () => "All requests would play the static choice; what is learned is watched only.",
  "shadow+probe": () => "At least 99% of requests would play the static choice.",
  canary: (part) => `${share(part)} of requests would follow what is learned, the others the static choice.`,
  on: () => "All requests would follow what is learned.",
};

function modeDialog({ pool, mode, traffic }, orders) {
  const cost = h("p", { class: "cost", id: "mode-cost", role: "status" }, "…");
  const { form } = ask(`Mode of ${pool}`, [
    ...choose("Mode", "mode", ["on", "canary", "shadow+probe", "shadow", "off"], mode),
    ...field("Share of requests, for canary (0 to 1)", "share", { type: "number", min: 0, max: 1, step: "any", value: orders?.share ?? "" }),
    ...why(), cost,
  ], async (given) => {
    const part = given.mode === "canary" && given.share !== "" ? Number(given.share) : null;
    await call("PUT", `${poolPath(pool)}/mode`, { mode: given.mode, share: part, why: given.why });
  });
  let compared = "…";
  const tell = () => { cost.textContent = `${FOLLOWED[form.elements.mode.value](Number(form.elements.share.value))} ${compared}`; };
  form.addEventListener("input", tell);
  tell();
  // Nothing waits for the answer: off must be possible whatever is known.
  call("POST", `${poolPath(pool)}/what-if`, { load: Math.max(1, Math.round(traffic?.mean_rows ?? 1)) })
    .then((answer) => { compared = against(answer, orders?.pins.length); }, (error) => { compared = `What the static choice would bring cannot be told: ${error.message}.`; })
    .then(tell);
}

function against({ load, fixed }, pins) {
  if (!fixed) return "The static choice cannot be compared: no engine has loaded its draft.";
  const { loss } = fixed, more = loss.value < 0, [low, high] = more ? [-loss.high, -loss.low] : [loss.low, loss.high];
  return `At load ${load} the static choice, ${fixedArm(fixed)}, is expected to give ${share(Math.abs(loss.value))} ${more ? "more" : "less"} (${share(low)} to ${share(high)}) `
    + `than what is learned: ${ratio(fixed.speedup)} plain against ${ratio(fixed.learned)}.${pins ? " Pins are left out of this." : ""}`;
}

async function poolPage(pool, signal) {
  const base = poolPath(pool);
  const nodes = Object.fromEntries(["goodput", "choices", "load"].map((name) => [name, h("div", { class: "chart", id: `chart-${name}` })]));
  const top = h("div", { class: "grid" });
  const domains = h("div");
  const engines = h("div");
  const audit = h("div");
  const warnings = h("div");
  const shaded = h("p", { class: "quiet", id: "shaded" });
  const led = [card("half", "Goodput", nodes.goodput, shaded), card("half", "K by domain, at the load most of it is served at", nodes.choices),
    card("", "Domains", domains), card("narrow", "Load", nodes.load), card("broad", "Engines", engines)];
  show(h("h1", {}, pool), warnings, top, h("div", { class: "grid", style: "margin-top:1rem" }, led, card("", "Events", audit)));

  async function refresh(summary) {
    // A replica that stands by has nothing of its own to show but what all of them wrote down.
    const away = standby(summary), own = async (path) => (away ? [] : get(`${base}/${path}`));
    const [moments, served, known, orders, log] = await Promise.all([
      own("history"), own("domains").catch(empty), own("engines").catch(empty), get(`${base}/orders`).catch(() => null), get(`${base}/audit?limit=20`).catch(empty),
    ]);
    if (signal.aborted) return;
    fill(warnings, notes(summary));
    for (const one of [top, ...led]) one.hidden = away;
    fill(top, hero(summary), facts(summary, orders, true));
    const pinned = (d) => orders?.pins.findLast((p) => p.domain === d.domain && (p.regime === null || p.regime === d.regime));
    fill(domains, served.length ? table("Domains", [
      ["domain", (d) => h("a", { href: href(pool, d.domain) }, d.domain)], ["regime", (d) => d.regime],
      ["choice", (d) => h("span", { class: "whole" }, [d.now ? arm(d.now) : "–", pinned(d) ? h("span", { class: "tag on" }, "pinned") : null, instead(d.now)].filter(Boolean).map((part) => (typeof part === "string" ? `${part} ` : part)))],
      ["at load", (d) => number(d.now?.load), true], ["speedup expected", (d) => ratio(d.now?.speedup), true], ["tokens/s a request", (d) => number(d.recent.tokens_per_second, 1), true],
      ["accepted a step", (d) => number(d.recent.accepted_per_step, 2), true], ["tokens so far", (d) => number(d.tokens), true],
    ], served) : h("p", { class: "quiet" }, "Nothing has been served yet."), (orders?.pins ?? []).filter((p) => !served.some((d) => d.domain === p.domain && (p.regime === null || p.regime === d.regime))).map((p) =>
      h("p", { class: "quiet" }, `No request of domain ${p.domain}${p.regime ? ` (${p.regime})` : ""} has been seen, which is pinned to ${fixedArm(p)} by ${p.by}. `,
        me.role === "admin" ? h("button", { "data-key": `unpin ${p.domain} ${p.regime}`, onclick: () => unpinDialog(pool, p.domain, p.regime) }, "Unpin …") : null)));
    fill(engines, known.length ? table("Engines", [
      ["engine", (e) => e.engine], ["software", (e) => e.software], ["policy", (e) => (e.applied ? `${e.applied[1]}${e.policy_age === null ? "" : `, ${number(e.policy_age)} s old`}` : "none"), true],
      ["breaker", (e) => h("span", { class: `tag ${e.breaker === "closed" ? "on" : "bad"}` }, e.breaker)], ["running", (e) => number(e.running), true],
      ["step, median / 95%", (e) => h("span", {}, e.step_p50 === null ? "–" : `${number(1000 * e.step_p50)} / ${e.step_p95 === null ? "–" : number(1000 * e.step_p95)} ms`, slow(e)), true],
      ["seen / lag", (e) => (e.ended ? "ended" : `${ago(Math.max(0, Date.now() / 1000 - e.last_seen))} / ${unit(e.lag_seconds, 1, " s")}`), true],
    ], known) : h("p", { class: "quiet" }, "No engine has reported."));
    fill(audit, log.length ? table("Events", [["time", (e) => h("span", { class: "whole" }, day(e.time))], ["who", (e) => e.who], ["what", (e) => h("span", { class: "words" }, e.what)], ["why", (e) => e.why]], log) : h("p", { class: "quiet" }, "Nothing has changed yet."));
    if (away) return;
    fill(shaded, moments.some((m) => m.measuring) ? "Shaded: a measurement ran; darker: all played its fixed choice." : "");
    charts.goodput(nodes.goodput, moments);
    charts.choices(nodes.choices, moments);
    charts.load(nodes.load, moments);
  }
  await live(pool, signal, refresh);
}

// An engine that takes markedly longer than usual for every step: its machine's doing, not speculation's.
const SLOW = 1.2;
const slow = (e) => (e.slowness >= SLOW ? h("div", { class: "quiet" }, `${e.slowness.toFixed(1)}× usual`) : null);

const arm = (a) => (a.draft === "none" ? "no speculation" : `K = ${a.k} on ${a.draft}`);
// What would be chosen, where a pin, the mode or a measurement has something else played.
const instead = (now) => (now?.held && now.would_choose && arm(now) !== arm(now.would_choose) ? h("div", { class: "quiet" }, `by ${now.held}; would choose ${arm(now.would_choose)}`) : null);
const empty = () => [];
const CUT = "cut off, trying again";
const QUIET = 5000;  // milliseconds without an event after which ages are drawn anew

// Refreshes now and after every event, never twice at once. What is wrong at first is for the caller.
async function live(pool, signal, refresh) {
  let busy = false, again = false, stream = "", summary = await get(poolPath(pool)), heard = Date.now();
  async function run() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      do { again = false; await refresh(summary); drawn = Date.now(); } while (again && !signal.aborted);
      if (!signal.aborted) setLink(stream);
    } catch (error) {
      if (!signal.aborted) setLink(error instanceof Refused ? error.message : CUT);
    } finally { busy = false; }
  }
  await refresh(summary);
  drawn = Date.now();
  follow(pool, signal, (kind, data) => { heard = Date.now(); if (kind === "state") summary = data; run(); }, (state, why) => setLink(stream = state === "live" ? "live" : why || CUT));
  const quiet = setInterval(async () => {
    if (stream === "live" && Date.now() - heard < QUIET) return;
    const now = await get(poolPath(pool)).catch(() => null);
    if (now === null) return;
    summary = now;
    run();
  }, QUIET);
  signal.addEventListener("abort", () => clearInterval(quiet));
}

// ---- the stream: a tag beside the name, and a banner while what is shown grows old

let link = "", drawn = Date.now();

function setLink(text) {
  link = text;
  const node = document.getElementById("link");
  node.textContent = text;
  node.className = text ? `tag ${text === "live" ? "on" : "warn"}` : "";
  tellAge();
}

function tellAge() {
  const lost = link !== "" && link !== "live";
  document.getElementById("gone").replaceChildren(...(lost ? [note(`${link === CUT ? "The controller does not answer; trying again" : link}. What you see is ${ago(Math.max(1, (Date.now() - drawn) / 1000)).replace(" ago", "")} old.`, "bad")] : []));
}
setInterval(tellAge, 1000);

// ---- one domain

async function domainPage(pool, domain, signal) {
  const base = poolPath(pool);
  const parts = new Map();
  const body = h("div");
  const warnings = h("div");
  show(h("h1", {}, h("a", { href: href(pool) }, pool), ` / ${domain}`), warnings, body);

  async function refresh(summary) {
    fill(warnings, notes(summary));
    body.hidden = standby(summary);
    if (standby(summary)) return;
    const [found, orders] = await Promise.all([get(`${base}/domains/${encodeURIComponent(domain)}`), get(`${base}/orders`).catch(() => null)]);
    if (signal.aborted) return;
    for (const one of found) {
      if (!parts.has(one.regime)) {
        const part = { head: h("div"), survival: h("div", { class: "chart tall" }), heat: h("div", { class: "chart tall" }), arms: h("div"), spread: h("div") };
        parts.set(one.regime, part);
        body.append(h("div", { class: "grid", style: "margin-bottom:1rem" }, card("", one.regime, part.head),
          card("half", "Survival by position, with 90% bands", part.survival), card("half", "Speedup expected, and probability of being best", part.heat),
          card("", "How much requests differ", part.spread), card("", "Arms", part.arms)));
      }
      const part = parts.get(one.regime);
      const choice = one.choices.find((c) => c.load === one.main_load) ?? one.choices[0];
      const pin = orders?.pins.findLast((p) => p.domain === domain && (p.regime === null || p.regime === one.regime));
      fill(part.head,
        h("p", { class: "reason" }, choice ? `At load ${choice.load}: ${choice.reason}` : "Nothing has been decided yet."),
        h("p", { class: "quiet" }, `${number(one.tokens)} tokens in ${number(one.row_steps)} row-steps.`),
        pin ? h("p", {}, h("span", { class: "tag on" }, "pinned"), ` to ${pin.draft} at K = ${pin.k} by ${pin.by}${pin.until ? ` until ${day(pin.until)}` : ""}${pin.why ? `: ${pin.why}` : ""}`) : "",
        me.role === "admin" ? h("div", { class: "row" },
          h("button", { "data-key": `pin ${one.regime}`, onclick: () => pinDialog(pool, domain, one, choice, summary) }, pin ? "Pin otherwise …" : "Pin …"),
          pin ? h("button", { "data-key": `unpin ${one.regime}`, onclick: () => unpinDialog(pool, domain, one.regime) }, "Unpin …") : "",
          h("button", { "data-key": `reset ${one.regime}`, onclick: () => resetDialog(pool, domain, found, choice, summary) }, "Learn anew …")) : "");
      if (one.curves.length) charts.survival(part.survival, one.curves);
      if (choice?.arms.some((a) => a.draft !== "none")) charts.heat(part.heat, choice.arms);
      fill(part.spread, one.curves.length ? table("Requests", [
        ["draft", (c) => c.draft], ["first token kept", (c) => number(c.positions[0]?.acceptance.value, 2), true],
        ["differs between requests by (sd)", (c) => (c.spread.sd === null ? "not known yet" : `± ${number(c.spread.sd, 2)}`), true],
        ["requests, in pieces of 64 steps", (c) => number(c.spread.segments), true], ["steps counted lately", (c) => number(c.spread.observed), true],
        ["worth independent ones", (c) => number(c.effective_n), true], ["design effect", (c) => number(c.spread.design_effect, 1), true],
      ], one.curves) : h("p", { class: "quiet" }, "Nothing has been drafted yet."));
      fill(part.arms, choice ? table("Arms", [
        ["draft", (a) => a.draft], ["K", (a) => a.k, true], ["tokens/s of the batch", (a) => number(a.batch_goodput), true], ["speedup", (a) => `${ratio(a.speedup)}${a.identified ? "" : " not identified"}`, true],
        ["best with probability", (a) => percent(a.best), true], ["played with", (a) => percent(a.probability), true], ["played so far", (a) => percent(a.played), true],
      ], choice.arms, (a) => (a.draft === choice.draft && a.k === choice.k ? "chosen" : null)) : "");
    }
  }
  await live(pool, signal, refresh);
}

function pinDialog(pool, domain, one, choice, summary) {
  const drafts = ["none", ...(summary.drafts ?? []).map((d) => d.draft)];
  const cost = h("p", { class: "cost", id: "pin-cost", role: "status" }, "");
  const { form, confirm } = ask(`Pin ${domain} (${one.regime})`, [
    ...choose("Draft", "draft", drafts, choice?.draft), ...choose("K", "k", summary.k_values ?? [0], choice?.k),
    ...field("For how many hours (empty: until it is unpinned)", "hours", { type: "number", min: 0, step: "any" }), ...why(), cost,
  ], async (given) => {
    const until = given.hours ? Date.now() / 1000 + 3600 * Number(given.hours) : null;
    await call("PUT", `${poolPath(pool)}/pins/${encodeURIComponent(domain)}`, { draft: given.draft, k: Number(given.k), regime: one.regime, until, why: given.why });
  }, "Pin");
  // What it would cost stands there before anybody can confirm; of several answers under way the last question's counts.
  let asked = 0;
  async function price() {
    const mine = (asked += 1);
    const none = form.elements.draft.value === "none";
    if (none) form.elements.k.value = "0";
    for (const option of form.elements.k.options) option.disabled = none && option.value !== "0";
    const given = Object.fromEntries(new FormData(form));
    confirm.disabled = true;
    cost.textContent = "…";
    const answer = await call("POST", `${poolPath(pool)}/what-if`, { load: one.main_load ?? choice?.load ?? 1, pin: { domain, draft: given.draft, k: Number(given.k), regime: one.regime } }).catch((error) => error);
    if (mine !== asked) return;
    confirm.disabled = answer instanceof Error;
    cost.textContent = answer instanceof Error ? `${answer.message}. What has no price cannot be pinned here; akc pin does it unpriced.` : lost(answer);
  }
  form.addEventListener("change", (event) => { if (["draft", "k"].includes(event.target.name)) price(); });
  price();
}

function lost({ load, arms: [{ loss, speedup }] }) {
  return loss.value <= 0 ? `At load ${load}: the best arm as far as is known, ${ratio(speedup)} plain.`
    : `At load ${load}: the batch is expected to lose ${share(loss.value)} (${share(loss.low)} to ${share(loss.high)}) against the best arm; ${ratio(speedup)} plain.`;
}

const why = () => field("Why (for the audit log)", "why");
// regime null: both.
const unpinDialog = (pool, domain, regime) => ask(`Unpin ${domain}${regime ? ` (${regime})` : ""}`, why(), (given) =>
  call("DELETE", `${poolPath(pool)}/pins/${encodeURIComponent(domain)}?${regime ? `regime=${regime}&` : ""}why=${encodeURIComponent(given.why)}`), "Unpin");

function resetDialog(pool, domain, found, choice, summary) {
  const counted = found.flatMap((one) => one.curves.filter((c) => c.spread.observed >= 1).map((c) => h("li", {}, `${c.draft}, ${one.regime}: ${number(c.spread.observed)} steps, worth ${number(c.effective_n)} independent ones`)));
  const plain = choice?.arms.find((a) => a.draft === "none")?.goodput, most = summary.budget_steps;
  const seconds = most && plain ? `, ${number(most / plain, 2)} s at load ${choice.load}` : "";
  ask(`Learn ${domain} anew`, [
    h("p", {}, "What was counted of its acceptance is forgotten, in both regimes:"), h("ul", {}, counted.length ? counted : h("li", {}, "nothing was counted lately")),
    h("p", {}, "It starts again from where the drafts stand in the other domains. What steps cost stays known."),
    h("p", { class: "cost" }, most === null ? "What exploring may cost is not known before the first decision."
      : `It explores again. Each regime may lose as much by that as ${number(most, 1)} steps without speculation take${seconds}; then it plays only what is sure to pay.`), ...why(),
  ], (given) => call("POST", `${poolPath(pool)}/resets`, { domain, why: given.why }), "Learn anew");
}

// ---- routes

// Only `#/…` names a page; another hash, such as the skip link's, is none.
// What is not encoded well is taken as it stands: nothing has that name, and the page says so.
function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}
function place() {
  const [pool, ...domain] = (/^#\/(.*)/.exec(location.hash)?.[1] ?? "").split("/").map(decoded);
  return [pool, domain.join("/") || undefined];
}

async function route() {
  here.abort();
  here = new AbortController();
  const signal = here.signal;
  const [pool, domain] = place();
  setLink("");
  try {
    if (!pool) return await poolsPage();
    get("/v1/pools").then((all) => drawNav(all.map((p) => p.pool), pool)).catch(() => {});
    document.title = domain === undefined ? `${pool} · Adaptive K` : `${domain} · ${pool} · Adaptive K`;
    await (domain === undefined ? poolPage(pool, signal) : domainPage(pool, domain, signal));
  } catch (error) {
    if (signal.aborted) return;
    failed(error);
    if (!(error instanceof Refused) || error.status === 503) setTimeout(() => { if (!signal.aborted) route(); }, 3000);
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", route);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", route);
await identify();
route();
