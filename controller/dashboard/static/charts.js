import { h, percent } from "./dom.js";

// Charts over Plotly, in the page's own colours, units on every axis.
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const pick = (value) => {
  const found = /light-dark\((.+?),\s*(.+)\)/.exec(value);
  return found ? (dark() ? found[2] : found[1]) : value;
};
export const colour = (name) => pick(css(`--${name}`));
export const palette = () => (dark()
  ? ["#4cc9b8", "#f0b45a", "#8ab4f8", "#e58fb1", "#b9c46a", "#c4a5f5"]
  : ["#0b6e6e", "#b35c00", "#2a5db0", "#a0336b", "#66761c", "#6a45b0"]);

function layout(more) {
  const axis = { gridcolor: colour("line"), linecolor: colour("line"), zeroline: false, automargin: true, tickfont: { size: 11 } };
  const made = {
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: colour("ink"), family: "system-ui, sans-serif", size: 12 },
    margin: { l: 56, r: 12, t: 28, b: 40 }, showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, hovermode: "x unified",
    hoverlabel: { namelength: -1, bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } }, colorway: palette(), ...more,
  };
  made.xaxis = { ...axis, ...more.xaxis };
  made.yaxis = { ...axis, ...more.yaxis };
  return made;
}

function draw(node, traces, more) {
  if (!traces.some((trace) => trace.x?.length)) {
    node.replaceChildren(h("p", { class: "quiet empty" }, "Nothing to draw yet."));
    return null;
  }
  node.querySelector(".empty")?.remove();
  return Plotly.react(node, traces, layout(more), { displayModeBar: false, responsive: true });
}

// Plotly reads labels as markup, with links in it. What comes from the API is only ever text here, too.
const MARKUP = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
const asText = (label) => label.replace(/[&<>]/g, (sign) => MARKUP[sign]);

// Of a label what fits in `room` pixels: its beginning and its end, where names of one kind differ. Hovering tells the whole
// of it, over several lines.
const pen = document.createElement("canvas").getContext("2d");
function shorter(label, room = 230) {
  pen.font = "12px system-ui, sans-serif";
  const fits = (text) => pen.measureText(text).width <= room;
  if (fits(label)) return asText(label);
  const signs = [...new Intl.Segmenter().segment(label)].map((one) => one.segment);
  let short = "…";
  for (let kept = 2; kept < signs.length; kept += 1) {
    const longer = `${signs.slice(0, Math.ceil(kept / 2)).join("")}…${signs.slice(-Math.floor(kept / 2)).join("")}`;
    if (!fits(longer)) break;
    short = longer;
  }
  return asText(short);
}
const LINE = 28;
const whole = (label) => (label.match(new RegExp(`.{1,${LINE}}`, "gsu")) ?? []).map(asText).join("<br>");

const CLOCK = { title: { text: "time of day" } };
const time = (moments) => moments.map((m) => new Date(1000 * m.time));

// Bands behind a chart over time: while a measurement ran, and darker where all played its fixed choice. A moment's state
// holds until the next one's.
function bands(moments) {
  return [["measuring", 0.1], ["fixed", 0.16]].flatMap(([state, alpha]) => {
    const starts = moments.flatMap((m, n) => (m[state] && !moments[n - 1]?.[state] ? [n] : []));
    return starts.map((start) => {
      const end = moments.findIndex((m, n) => n > start && !m[state]);
      const [x0, x1] = [start, end < 0 ? moments.length - 1 : end].map((n) => new Date(1000 * moments[n].time));
      return { type: "rect", name: state, xref: "x", yref: "paper", x0, x1, y0: 0, y1: 1, layer: "below", line: { width: 0 }, fillcolor: fade(colour("warn"), alpha) };
    });
  });
}

export function goodput(node, moments) {
  const [accent, second, third] = palette();
  const line = (name, values, color, dash) => ({ x: time(moments), y: values, name, mode: "lines", line: { color, dash, width: dash ? 1.5 : 2.5 }, hovertemplate: "%{y:.0f}" });
  draw(node, [
    line("as served", moments.map((m) => m.goodput), accent),
    line("no speculation (estimate)", moments.map((m) => m.plain), second, "dot"),
    line("static policy (estimate)", moments.map((m) => m.static), third, "dash"),
  ], { xaxis: CLOCK, yaxis: { title: { text: "tokens per second of a step" }, rangemode: "tozero" }, shapes: bands(moments) });
}

export function choices(node, moments) {
  const names = [...new Set(moments.flatMap((m) => m.domains.map((d) => `${d.domain}, ${d.regime}`)))];
  const colours = palette();
  draw(node, names.map((name, i) => {
    const of = moments.map((m) => m.domains.find((d) => `${d.domain}, ${d.regime}` === name));
    // At another load another choice is due, and a measurement's window has another: else it has changed.
    const moved = of.map((d, n) => Boolean(d && of[n - 1] && !moments[n].fixed && !moments[n - 1].fixed && d.load === of[n - 1].load && (d.k !== of[n - 1].k || d.draft !== of[n - 1].draft)));
    return {
      x: time(moments), y: of.map((d) => d?.k ?? null), name: shorter(name), mode: "lines+markers", line: { shape: "hv", width: 2, color: colours[i % colours.length] },
      marker: { size: moved.map((m) => (m ? 8 : 0)), color: colours[i % colours.length] }, text: of.map((d) => ((d?.draft ?? "").length > LINE ? "<br>" : "") + whole(d?.draft ?? "")), meta: whole(name), hovertemplate: "K = %{y} on %{text}<extra>%{meta}</extra>",
    };
  }), { xaxis: CLOCK, yaxis: { title: { text: "K, draft tokens a step" }, rangemode: "tozero", dtick: 1 }, shapes: bands(moments) });
}

export function load(node, moments) {
  const [accent, second] = palette();
  draw(node, [
    { x: time(moments), y: moments.map((m) => m.rows), name: "rows of a step", mode: "lines", line: { color: accent, width: 2 }, hovertemplate: "%{y:.1f}" },
    { x: time(moments), y: moments.map((m) => m.waiting), name: "requests waiting", mode: "lines", line: { color: second, width: 1.5, dash: "dot" }, hovertemplate: "%{y}" },
  ], { xaxis: CLOCK, yaxis: { title: { text: "requests" }, rangemode: "tozero" }, shapes: bands(moments) });
}

const fade = (color, alpha) => color.replace(/^#(..)(..)(..)$/, (_, r, g, b) => `rgba(${parseInt(r, 16)},${parseInt(g, 16)},${parseInt(b, 16)},${alpha})`);

export function survival(node, curves) {
  const colours = palette();
  const traces = curves.flatMap((curve, i) => {
    const color = colours[i % colours.length];
    const x = curve.positions.map((p) => p.position);
    const lows = curve.positions.map((p) => p.survival.low), highs = curve.positions.map((p) => p.survival.high);
    return [
      { x: [...x, ...x.toReversed()], y: [...highs, ...lows.toReversed()], fill: "toself", fillcolor: fade(color, 0.16), line: { width: 0 }, hoverinfo: "skip", showlegend: false, mode: "lines" },
      {
        x, y: curve.positions.map((p) => p.survival.value), name: shorter(curve.draft), mode: "lines+markers", line: { color, width: 2.5 }, customdata: curve.positions.map((p) => [
          p.acceptance.value, p.acceptance.low, p.acceptance.high, p.survival.low, p.survival.high, p.seen ? `${p.accepted.toLocaleString("en")} of ${p.seen.toLocaleString("en")}, ${(p.accepted / p.seen).toFixed(3)}` : "none yet",
        ]),
        meta: whole(curve.draft), hovertemplate: "survives %{y:.3f} (%{customdata[3]:.3f}–%{customdata[4]:.3f})<br>kept if reached: %{customdata[0]:.3f} (%{customdata[1]:.3f}–%{customdata[2]:.3f})<br>raw counts: %{customdata[5]}<extra>%{meta}</extra>",
      },
    ];
  });
  draw(node, traces, { xaxis: { title: { text: "position in the draft" }, dtick: 1 }, yaxis: { title: { text: "share of steps that keep so many" }, range: [0, 1.02] } });
}

export function heat(node, arms) {
  const drafts = [...new Set(arms.filter((a) => a.draft !== "none").map((a) => a.draft))];
  const ks = [...new Set(arms.filter((a) => a.draft !== "none").map((a) => a.k))].sort((a, b) => a - b);
  const at = (draft, k) => arms.find((a) => a.draft === draft && a.k === k);
  const speeds = arms.map((a) => a.speedup.value);
  const zmin = Math.min(0.99, ...speeds), zmax = Math.max(1.01, ...speeds), even = (1 - zmin) / (zmax - zmin);  // no colour where nothing is gained
  draw(node, [{
    type: "heatmap", x: ks.map(String), y: drafts.map(asText), z: drafts.map((d) => ks.map((k) => at(d, k)?.speedup.value ?? null)), zmin, zmax,
    colorscale: [[0, colour(zmin < 0.99 ? "bad" : "card")], [even, colour("card")], [1, colour("accent")]], xgap: 2, ygap: 2, colorbar: { title: { text: "× plain" }, thickness: 10 },
    text: drafts.map((d) => ks.map((k) => (at(d, k) ? `${at(d, k).speedup.value.toFixed(2)}×<br>${percent(at(d, k).best)}` : ""))), texttemplate: "%{text}",
    customdata: drafts.map((d) => ks.map((k) => [at(d, k)?.speedup.low, at(d, k)?.speedup.high, 100 * (at(d, k)?.best ?? 0), whole(d)])),
    hovertemplate: "%{customdata[3]}, K = %{x}<br>%{z:.3f}× plain (%{customdata[0]:.3f}–%{customdata[1]:.3f})<br>best in %{customdata[2]:.0f}% of draws<extra></extra>",
  }], { hovermode: "closest", showlegend: false, xaxis: { title: { text: "K, draft tokens a step" }, type: "category", ticks: "" }, yaxis: { title: { text: "draft", standoff: 10 }, type: "category", ticks: "", tickvals: drafts.map(asText), ticktext: drafts.map((d) => shorter(d, 115)) } });
}
