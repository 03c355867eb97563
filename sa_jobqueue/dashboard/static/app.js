// The pages work without this: it refreshes them, draws charts and graphs, and ticks all boxes at once.
"use strict";
(() => {
  const store = (name, value) => {
    try {
      if (value === undefined) return localStorage.getItem(`sa_jobqueue.${name}`);
      localStorage.setItem(`sa_jobqueue.${name}`, value);
    } catch { /* a browser that keeps nothing */ }
    return null;
  };

  // In the viewer's language, but never "1:05" for two times of a day.
  const hours24 = { hourCycle: "h23" };

  // ---- colours
  const theme = document.getElementById("theme");
  if (theme) {
    theme.hidden = false;
    theme.addEventListener("click", () => {
      const root = document.documentElement;
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      store("theme", root.dataset.theme);
      draw(document, true);
    });
  }

  // ---- refreshing: not while the page is hidden, and not under the hands of someone who fills it in
  const live = document.querySelector("[data-live]");
  const rate = document.getElementById("refresh");
  if (live && rate) {
    rate.closest("label").hidden = false;
    if (store("refresh") !== null) rate.value = store("refresh");
    let last = Date.now(), asked = null, failed = false, asOf = new Date();
    const busy = () =>
      live.contains(document.activeElement) && document.activeElement.matches("input, select, textarea") ||
      live.querySelector("input[type=checkbox]:checked, details[data-hold][open], [data-chart]:active") ||
      String(getSelection()).length > 0;
    rate.addEventListener("change", () => { store("refresh", rate.value); last = 0; });
    // How old the numbers are is always said: those of a server that is gone look like those of a quiet one.
    const state = document.getElementById("state"), lost = document.getElementById("lost"), words = JSON.parse(state.dataset.words);
    const say = (place, words) => { if (place.textContent !== words) place.textContent = words; };
    const tell = waits => {
      const at = asOf.toLocaleTimeString([], hours24), gone = failed || asked !== null && Date.now() - asked > 8000;
      say(lost, gone ? words.lost.replace("{time}", at) : "");
      say(state, gone ? "" : waits ? words.paused : words.as_of.replace("{time}", at));
      document.body.classList.toggle("lost", gone);
    };
    setInterval(() => {
      const seconds = Number(rate.value), waits = Boolean(busy());
      tell(seconds > 0 && waits);
      if (!seconds || document.hidden || waits || Date.now() - last < seconds * 1000) return;
      last = Date.now();
      asked ??= last;
      htmx.trigger(live, "refresh");
    }, 250);
    live.addEventListener("htmx:before:response", event => {
      const answer = event.detail.ctx.response.raw;
      if (answer.headers.has("sa-jobqueue-part")) { failed = false; asked = null; asOf = new Date(); return; }
      event.preventDefault();
      // A proxy without its server, or a login that is over: the answer is a page of its own.
      if (answer.status >= 500 || answer.status === 429) failed = true;
      else location.reload();
    });
    live.addEventListener("htmx:error", () => { failed = true; });
  }
  // The number of the doctor's problems is in the title and on the icon, so that it is seen in a tab behind others.
  const icon = document.querySelector("link[rel=icon]"), title = document.title, usual = icon?.href;
  const examine = async () => {
    const answer = await fetch(document.body.dataset.status).catch(() => null), { problems, behind } = answer?.ok ? await answer.json() : {};
    const place = document.getElementById("behind");
    if (place) place.textContent = behind == null ? "" : ` Its last transaction is ${behind.toFixed(1)} s old.`;
    document.title = problems ? `(${problems}) ${title}` : title;
    const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#b3261e"/><text x="16" y="24" font-family="sans-serif" font-size="22" font-weight="bold" text-anchor="middle" fill="#fff">${Math.min(problems, 9)}</text></svg>`;
    icon.href = problems ? `data:image/svg+xml,${encodeURIComponent(svg)}` : usual;
  };
  if (document.body.dataset.status) { examine(); setInterval(examine, 60000); }
  // On a narrow screen the menu scrolls: to the page that is shown.
  document.querySelector("header nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
  // What an action came to is said once.
  const here = new URL(location);
  if (here.searchParams.has("did")) {
    for (const name of ["did", "n", "left", "of", "change", "entry", "asked", "waits", "stale", "unserved"]) here.searchParams.delete(name);
    history.replaceState(history.state, "", here);
  }
  document.addEventListener("htmx:after:swap", () => { localTimes(document); labelCells(); draw(document, false); });

  // ---- forms
  let ticked = null;
  document.addEventListener("click", event => {
    if (!event.target.matches("input[data-all], input[name=id][type=checkbox]")) return;
    const boxes = [...event.target.form.querySelectorAll("input[name=id]")], at = boxes.indexOf(event.target);
    // With the shift key: all boxes from the box that was clicked last.
    const from = at < 0 ? 0 : event.shiftKey && boxes.includes(ticked) ? boxes.indexOf(ticked) : at, to = at < 0 ? boxes.length : at;
    for (const box of boxes.slice(Math.min(from, to), Math.max(from, to) + 1)) box.checked = event.target.checked;
    if (at >= 0) ticked = event.target;
    const number = boxes.filter(box => box.checked).length, place = document.getElementById("ticked");
    if (place) place.textContent = number ? ` (${number})` : "";
  });
  // An address says only what was asked for.
  document.addEventListener("formdata", event => {
    if (event.target.method === "get") for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
  });
  // A form of limits says what it will change.
  document.addEventListener("input", event => {
    const form = event.target.closest("form[data-changes]");
    if (!form) return;
    const changed = [...form.querySelectorAll("label > input")].filter(field => field.value.trim() !== field.defaultValue);
    const named = field => {
      const without = field.placeholder || "none";
      return `${field.parentElement.firstChild.data.split(", 500")[0]}: ${field.defaultValue || without} → ${field.value.trim() || without}`;
    };
    form.querySelector("output").textContent = changed.map(field => `${named(field)}.`).join(" ");
  });
  // What takes many transactions goes on by itself.
  const going = document.querySelector("form[data-go-on]");
  if (going) setTimeout(() => going.requestSubmit(), 300);
  // A key for a page: g, then a letter of its name, the first that no page before it has taken; / for the filter.
  const pages = new Map();
  for (const link of document.querySelectorAll("header nav a")) {
    const letter = [...link.textContent.trim().toLowerCase()].find(character => !pages.has(character));
    pages.set(letter, link);
    link.setAttribute("aria-keyshortcuts", `g ${letter}`);
    link.title = `g ${letter}`;
  }
  // Ctrl-K or Cmd-K leads to the field that finds, and the arrow keys from there to what is found.
  const finder = document.querySelector(".find input"), found = document.getElementById("found");
  finder?.addEventListener("htmx:before:response", event => {
    if (!event.detail.ctx.response.raw.headers.has("sa-jobqueue-part")) event.preventDefault();
  });
  document.addEventListener("keydown", event => {
    if (!finder) return;
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") { finder.focus(); finder.select(); }
    else if (finder.closest(".find").contains(event.target) && ["ArrowDown", "ArrowUp", "Escape"].includes(event.key)) {
      const places = [finder, ...found.querySelectorAll("li > a, button")], at = places.indexOf(event.target);
      if (event.key === "Escape") { found.textContent = ""; finder.focus(); }
      else places[Math.min(Math.max(at + (event.key === "ArrowDown" ? 1 : -1), 0), places.length - 1)].focus();
    } else return;
    event.preventDefault();
  });
  let went = 0;
  document.addEventListener("keydown", event => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      const field = document.querySelector("form.filter input:not([type=hidden])") ?? document.querySelector("form.find input");
      if (field) { event.preventDefault(); field.closest("details")?.setAttribute("open", ""); field.focus(); }
    } else if (event.key === "g") went = Date.now();
    else if (Date.now() - went < 1000) {
      went = 0;
      pages.get(event.key.toLowerCase())?.click();
    }
  });

  // On a narrow screen a filter of many fields is folded, and a table with buttons is a card for each row: see app.css.
  if (matchMedia("(max-width: 40rem)").matches)
    for (const fields of document.querySelectorAll("details.fields")) fields.open = false;
  const labelCells = () => {
    for (const table of document.querySelectorAll("table:has(td.acts, td.actions)")) {
      const names = [...table.tHead.rows[0].cells].map(cell => cell.textContent.trim());
      for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, i) => { cell.dataset.label = names[i]; });
    }
  };

  // ---- copying: a command, or the address of the page. Without HTTPS by the older command; where there is neither, there is no button.
  const isCopying = Boolean(navigator.clipboard || document.queryCommandSupported?.("copy"));
  document.documentElement.classList.toggle("copies", isCopying);
  document.addEventListener("click", async event => {
    const button = event.target.closest?.("[data-copy]");
    if (!button) return;
    const text = button.dataset.copy || location.href, label = button.textContent;
    let isDone = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    if (!isDone) {
      const field = document.createElement("textarea");
      field.value = text;
      document.body.append(field);
      field.select();
      isDone = document.execCommand("copy");
      field.remove();
      button.focus();
    }
    button.textContent = isDone ? "copied" : "not copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  });

  // ---- times: how long ago, in the viewer's own zone, or in UTC; the title has the two others
  const zone = document.getElementById("zone");
  if (zone) {
    zone.closest("label").hidden = false;
    zone.value = store("zone") ?? "";
    zone.addEventListener("change", () => { store("zone", zone.value); localTimes(document); draw(document, true); });
  }
  const isUtc = () => zone?.value === "utc";
  const localTimes = within => {
    for (const place of within.querySelectorAll("time[datetime]")) {
      const at = new Date(place.dateTime);
      if (isNaN(at)) continue;
      const utc = `${place.dateTime.slice(0, 19).replace("T", " ")} UTC`, local = at.toLocaleString([], hours24);
      if (place.dataset.given === undefined || place.textContent !== place.dataset.shown) place.dataset.given = place.textContent;
      place.textContent = place.dataset.shown = { utc, local }[zone?.value] ?? place.dataset.given;
      place.title = `${local} (${utc})`;
    }
  };

  // ---- charts: <div data-chart='{"at": [...], "series": [{"label", "values", "colour"}], "stacked": 2, "dashes": [...], "unit": "/s"}'>,
  // in which the first two series are areas on top of each other, and the others are lines
  const drawn = new WeakMap();
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // An opaque colour between this colour and that of the card: one area covers another.
  const paled = colour => {
    const [ink, card] = [colour, css("--card")].map(hex => {
      const digits = hex.slice(1).length === 3 ? [...hex.slice(1)].map(digit => digit + digit).join("") : hex.slice(1);
      return [0, 2, 4].map(at => parseInt(digits.slice(at, at + 2), 16));
    });
    return `rgb(${ink.map((part, i) => Math.round(part * 0.55 + card[i] * 0.45)).join(", ")})`;
  };
  // Each line has its name at its end, so that colour is not needed to tell them apart.
  const nameLines = u => {
    const ends = u.series.slice(1).map(({ label, stroke }, i) => {
      const at = u.data[i + 1].findLastIndex(value => value !== null);
      return at < 0 ? null : { label, colour: stroke(), x: u.valToPos(u.data[0][at], "x", true), y: u.valToPos(u.data[i + 1][at], "y", true) };
    }).filter(Boolean).sort((one, other) => other.y - one.y);
    const { ctx } = u, size = 11 * devicePixelRatio;
    ctx.save();
    ctx.font = `${size}px system-ui, sans-serif`;
    ctx.textAlign = "left"; ctx.textBaseline = "middle";
    ends.forEach((end, i) => {
      if (i) end.y = Math.min(end.y, ends[i - 1].y - size);
      ctx.fillStyle = end.colour;
      ctx.fillText(end.label, end.x + size / 3, end.y);
    });
    ctx.restore();
  };
  // What is dragged over in a chart becomes the time that the page shows.
  const chooseTime = u => {
    const { left, width } = u.select, step = u.data[0].length > 1 ? u.data[0][1] - u.data[0][0] : 60;
    if (width < 5) return;
    const first = Math.floor(u.posToVal(left, "x") / step) * step, last = Math.ceil(u.posToVal(left + width, "x") / step) * step;
    const to = new URL(location), iso = seconds => `${new Date(seconds * 1000).toISOString().slice(0, 16)}Z`;
    to.searchParams.delete("window");
    const end = Math.min(Math.max(last, first + 300), Math.floor(Date.now() / 60000) * 60);
    to.searchParams.set("from", iso(Math.min(first, end - 300)));
    to.searchParams.set("to", iso(end));
    location = to;
  };
  const draw = (within, again) => {
    for (const hint of within.querySelectorAll("[data-drag]")) hint.hidden = typeof uPlot === "undefined";
    if (typeof uPlot === "undefined") return;
    for (const place of within.querySelectorAll("[data-chart]")) {
      const kept = drawn.get(place);
      if (kept && !again && kept.said === place.dataset.chart) continue;
      if (kept) kept.chart.destroy();
      const said = JSON.parse(place.dataset.chart);
      const line = css("--line"), ink = css("--soft");
      let below = said.at.map(() => 0);
      const isArea = i => i < (said.stacked ?? 0);
      const columns = said.series.map((line, i) => {
        if (!isArea(i)) return line.values;
        below = line.values.map((value, i) => value === null ? null : value + (below[i] ?? 0));
        return below;
      });
      const shown = (line, at) => {
        if (at === null) return "";
        const value = line.values[at];
        if (value === null) return "–";
        return `${value >= said.open ? "> " : said.least?.[at] ? "≥ " : ""}${said.unit ? +value.toPrecision(3) : value.toLocaleString("en")}${said.unit}`;
      };
      const series = said.series.map((line, i) => ({
        label: line.label, stroke: css(line.colour), width: said.stacked && !isArea(i) ? 2 : 1.5, dash: said.dashes?.[i], points: { show: false },
        fill: isArea(i) ? paled(css(line.colour)) : undefined,
        value: (_, __, ___, at) => shown(line, at),
      }));
      // What is stacked is drawn from the top down, so that each covers what is above it; lines come last.
      const places = series.map((_, i) => i), order = [...places.filter(isArea).reverse(), ...places.filter(i => !isArea(i))];
      const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
      // In the zone of the times in tables.
      const inZone = seconds => isUtc() ? uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") : new Date(seconds * 1000);
      const span = said.at.length ? said.at[said.at.length - 1] - said.at[0] : 0;
      const short = uPlot.fmtDate(span > 172800 ? "{MM}-{DD}" : "{HH}:{mm}"), clock = (_, splits) => splits.map(at => short(inZone(at)));
      const moment = uPlot.fmtDate("{YYYY}-{MM}-{DD} {HH}:{mm}"), when = at => moment(inZone(at));
      const chart = new uPlot({
        width: place.clientWidth, height: Number(place.dataset.height ?? 200), cursor: { y: false, drag: { x: true, y: false, setScale: false } },
        padding: said.stacked ? undefined : [null, 32, null, null], hooks: { draw: said.stacked ? [] : [nameLines], setSelect: [chooseTime] },
        legend: { live: true, markers: { dash: (u, i) => ({ 10: "dashed", 3: "dotted" })[u.series[i].dash?.[0]] ?? "solid" } }, scales: { y: { range: (_, __, most) => [0, most * 1.05 || 1] } },
        axes: [{ ...axis, values: clock }, { ...axis, size: said.stacked ? 56 : 72, ...(said.unit && !said.stacked && { values: (_, splits) => splits.map(one => `${one.toLocaleString("en")}${said.unit}`) }) }], series: [{ value: (_, at) => at === null ? "" : when(at) }, ...order.map(i => series[i])],
      }, [said.at, ...order.map(i => columns[i])], place);
      drawn.set(place, { chart, said: place.dataset.chart });
    }
  };
  addEventListener("resize", () => draw(document, true));

  document.addEventListener("DOMContentLoaded", () => { localTimes(document); labelCells(); draw(document, false); });
})();
