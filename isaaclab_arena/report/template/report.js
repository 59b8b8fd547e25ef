"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const DATA = JSON.parse(byId("data").textContent);
  const filled = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
    node.append(...children.filter((child) => child !== null));
    return node;
  };
  const make = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
  const svgSpace = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;
  const shape = (tag, attributes = {}) => filled(document.createElementNS(svgSpace, tag), attributes, []);
  const sessionKey = "isaaclab-arena-report " + location.pathname;

  // Columns: numbers on a decimal grid and texts by number, as isaaclab_arena/report/jobs.py packs them.
  const bytesOf = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const wholeOf = (column) => {
    if (column.whole === undefined) {
      const bytes = bytesOf(column.data);
      column.whole = column.bytes === 1 ? bytes : new (column.bytes === 2 ? Uint16Array : Uint32Array)(bytes.buffer);
    }
    return column.whole;
  };
  const number = (column, at) => {
    if (!column) return NaN;
    if (!column.data) return column.lowest / 10 ** column.decimals;
    const step = wholeOf(column)[at];
    return step === (column.bytes === 2 ? 65535 : 4294967295) ? NaN : (step + column.lowest) / 10 ** column.decimals;
  };
  const code = (column, at) => (!column ? 0 : column.data ? wholeOf(column)[at] : 1);
  const text = (column, at) => (code(column, at) ? column.texts[code(column, at) - 1] : null);
  const shown = (column, at) => {
    if (!column) return null;
    if (column.texts) return text(column, at);
    const value = number(column, at);
    return Number.isNaN(value) ? null : value.toFixed(column.decimals);
  };

  // All episodes of all jobs, one after the other.
  const total = DATA.jobs.reduce((sum, job) => sum + job.count, 0);
  const jobOf = new Uint16Array(total);
  const positionOf = new Uint32Array(total);
  const outcomeOf = new Uint8Array(total);
  const indexOf = new Map();
  let next = 0;
  DATA.jobs.forEach((job, j) => {
    const codes = job.outcome ? job.outcome.texts.map((name) => Math.max(0, DATA.outcomes.indexOf(name))) : [];
    job.start = next;
    for (let at = 0; at < job.count; at++, next++) {
      jobOf[next] = j;
      positionOf[next] = at;
      outcomeOf[next] = job.outcome ? codes[code(job.outcome, at) - 1] : 4;
    }
  });
  const episodeIndex = (id) => {
    const job = DATA.jobs[jobOf[id]];
    return job.index ? number(job.index, positionOf[id]) : positionOf[id];
  };
  const films = new Map();
  for (const film of DATA.films) {
    const key = film.job + "/" + film.episode;
    if (!films.has(key)) films.set(key, []);
    films.get(key).push(film);
  }
  document.querySelectorAll(".typical").forEach((button) => {
    const [[job, episode]] = JSON.parse(button.dataset.pair);
    const film = (films.get(job + "/" + episode) || []).find((each) => each.poster);
    button.append(film ? make("img", { src: "data:image/webp;base64," + film.poster, alt: "" }) : "▶");
  });
  const filmsOf = (id) => films.get(jobOf[id] + "/" + episodeIndex(id)) || [];
  const find = (job, episode) => {
    const columns = DATA.jobs[job];
    if (!columns.index) return episode < columns.count ? columns.start + episode : -1;
    for (let at = 0; at < columns.count; at++) if (number(columns.index, at) === episode) return columns.start + at;
    return -1;
  };

  // Two jobs side by side: the partner of each episode of the first job, -1 where it has none.
  const partnersOf = (pair) => {
    if (!pair.partners) {
      const first = DATA.jobs[pair.first], second = DATA.jobs[pair.second];
      pair.partners = new Int32Array(first.count).fill(-1);
      const others = new Map(Array.from({ length: second.count }, (_, at) => [episodeIndex(second.start + at), second.start + at]));
      const wanted = pair.episodes && new Set(Array.from({ length: pair.count }, (_, at) => number(pair.episodes, at)));
      for (let at = 0; at < first.count; at++) {
        const index = episodeIndex(first.start + at);
        if (others.has(index) && (!wanted || wanted.has(index))) pair.partners[at] = others.get(index);
      }
    }
    return pair.partners;
  };
  let sideBySide = null;
  const partner = (id) => partnersOf(sideBySide)[positionOf[id]];
  // Both, only the first, only the second, neither; or an episode that says nothing.
  const came = (id) => {
    const one = outcomeOf[id], other = outcomeOf[partner(id)];
    return one > 2 || other > 2 ? 4 : 2 * (one > 0) + (other > 0);
  };
  const differs = (id) => came(id) === 1 || came(id) === 2;

  // The filter.
  const form = byId("filter");
  const fields = form.elements;
  const option = (select, label, value) => select.append(make("option", { value }, label));
  DATA.outcomes.forEach((name, number) => option(fields.outcome, name, number));
  DATA.jobs.forEach((job, number) => option(fields.job, job.name, number));
  const ranks = new Set();
  const conditions = new Set();
  for (const job of DATA.jobs) {
    for (let at = 0; at < job.count; at++) {
      ranks.add(number(job.rank, at));
      if (!job.rank || !job.rank.data) break;
    }
    for (const [name, column] of Object.entries(job.conditions)) if (column && !column.texts) conditions.add(name);
  }
  [...ranks].filter((rank) => rank === rank).sort((a, b) => a - b).forEach((rank) => option(fields.rank, rank, rank));
  byId("rank-label").hidden = ranks.size < 2;
  [...conditions].sort().forEach((name) => option(fields.condition, name, name));

  const asNumber = (field) => (field.value === "" ? null : Number(field.value));
  const chosen = () => {
    const outcome = asNumber(fields.outcome), rank = asNumber(fields.rank), how = sideBySide ? fields.came.value : "";
    const onlyJob = sideBySide ? sideBySide.first : asNumber(fields.job);
    const condition = fields.condition.value, low = asNumber(fields.low), high = asNumber(fields.high);
    const wanted = fields.text.value.trim().toLowerCase();
    const wantedIndex = /^#?\d+$/.test(wanted) ? Number(wanted.replace("#", "")) : null;
    const ids = [];
    DATA.jobs.forEach((job, j) => {
      if (onlyJob !== null && j !== onlyJob) return;
      const column = condition ? job.conditions[condition] : null;
      if (condition && (!column || column.texts)) return;
      const searched = [job.termination, job.language_instruction, job.error, ...Object.values(job.conditions)]
        .filter((each) => each && each.texts)
        .map((each) => [each, new Set(each.texts.flatMap((said, k) => (said.toLowerCase().includes(wanted) ? [k + 1] : [])))])
        .filter(([, codes]) => codes.size);
      const named = !wanted || job.name.toLowerCase().includes(wanted);
      for (let at = 0; at < job.count; at++) {
        const id = job.start + at;
        if (sideBySide && (partner(id) < 0 || (how && !how.includes(came(id))))) continue;
        if (outcome !== null && outcomeOf[id] !== outcome && !(sideBySide && outcomeOf[partner(id)] === outcome)) continue;
        if (rank !== null && number(job.rank, at) !== rank) continue;
        if (column) {
          const value = number(column, at);
          if (value !== value || (low !== null && value < low) || (high !== null && value > high)) continue;
        }
        if (!named && !(wantedIndex !== null && episodeIndex(id) === wantedIndex)
          && !DATA.outcomes[outcomeOf[id]].includes(wanted)
          && !searched.some(([each, codes]) => codes.has(code(each, at)))) continue;
        ids.push(id);
      }
    });
    const films = fields.order.value === "films";
    if (films || fields.order.value === "failures") {
      // By how bad it ended, after films where these come first; within that the order of the jobs.
      const kinds = [[], [], [], [], [], [], [], [], [], []];
      const rankOf = [3, 1, 2, 0, 4];
      for (const id of ids) {
        const rank = sideBySide ? (differs(id) ? 0 : 1) : rankOf[outcomeOf[id]];
        kinds[films && !sideBySide ? rank + (filmed(id) ? 0 : 5) : 2 * rank + (filmed(id) ? 0 : 1)].push(id);
      }
      return kinds.flat();
    }
    if (fields.order.value === "long") {
      // Length and episode in one number: arrays of numbers are sorted many times as fast as by a function.
      const keys = Float64Array.from(ids, (id) => id - (number(DATA.jobs[jobOf[id]].length, positionOf[id]) || 0) * total);
      return Array.from(keys.sort(), (key) => ((key % total) + total) % total);
    }
    return ids;
  };
  const hasFilm = new Uint8Array(total);
  for (const film of DATA.films) {
    const id = find(film.job, film.episode);
    if (id >= 0) hasFilm[id] = 1;
  }
  const filmed = (id) => hasFilm[id] === 1 || (sideBySide !== null && hasFilm[partner(id)] === 1);

  // The grid: only the tiles that are in sight exist.
  const grid = byId("grid"), sheet = byId("sheet");
  const GAP = 8;
  let ids = [], active = 0, columns = 1, tileWidth = 150, tileHeight = 44, withPictures = false;
  const namesJobs = () => DATA.jobs.length > 1 && !sideBySide;
  const tile = (place) => {
    const id = ids[place], job = DATA.jobs[jobOf[id]];
    const sides = sideBySide ? [id, partner(id)] : [id];
    const outcomes = sides.map((each) => DATA.outcomes[outcomeOf[each]]).join(" and ");
    const film = sides.flatMap(filmsOf).find((each) => each.poster) || null;
    const about = `#${episodeIndex(id)} · ${sides.map((each) => shown(DATA.jobs[jobOf[each]].length, positionOf[each])).join(" / ")} steps`;
    const node = make("button", {
      type: "button", class: `tile c${outcomeOf[id]}`, "data-place": place, "data-film": filmed(id) ? "yes" : "no",
      tabindex: place === active ? 0 : -1, title: hover(id), "aria-label": `${job.name}, episode ${episodeIndex(id)}, ${outcomes}`,
    });
    if (withPictures) node.append(film ? make("img", { src: "data:image/webp;base64," + film.poster, alt: "" }) : make("div", { class: "no" }, filmed(id) ? "" : "not filmed"));
    for (const each of sides) node.append(make("span", { class: `how c${outcomeOf[each]}` }, DATA.outcomes[outcomeOf[each]]));
    node.append(make("span", {}, about));
    if (namesJobs()) node.append(make("span", {}, job.name));
    node.style.left = GAP + (place % columns) * (tileWidth + GAP) + "px";
    node.style.top = GAP + Math.floor(place / columns) * (tileHeight + GAP) + "px";
    node.style.width = tileWidth + "px";
    node.style.height = tileHeight + "px";
    return node;
  };
  const conditionsOf = (id) =>
    Object.entries(DATA.jobs[jobOf[id]].conditions)
      .map(([name, column]) => [name, shown(column, positionOf[id])]).filter(([, value]) => value !== null);
  const hover = (id) => [DATA.jobs[jobOf[id]].name + ", episode " + episodeIndex(id),
    ...conditionsOf(id).slice(0, 14).map(([name, value]) => name + " " + value)].join("\n");
  const draw = () => {
    const first = Math.max(0, Math.floor((grid.scrollTop - GAP) / (tileHeight + GAP)) - 2) * columns;
    const last = Math.min(ids.length, first + (Math.ceil(grid.clientHeight / (tileHeight + GAP)) + 5) * columns);
    const focused = sheet.contains(document.activeElement);
    const nodes = [];
    for (let place = first; place < last; place++) nodes.push(tile(place));
    if (active < first || active >= last) if (ids.length) nodes.push(tile(active));
    sheet.replaceChildren(...nodes);
    if (focused) sheet.querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
  };
  const layOut = () => {
    const least = withPictures ? 150 : 118;
    const width = Math.max(0, grid.clientWidth - GAP);
    columns = Math.max(1, Math.floor(width / (least + GAP)));
    tileWidth = Math.floor(width / columns) - GAP;
    tileHeight = (withPictures ? 140 : 46) + (sideBySide || namesJobs() ? 19 : 0);
    const lines = Math.ceil(ids.length / columns);
    const full = lines * (tileHeight + GAP) + GAP;
    // Browsers end elements at some millions of pixels.
    sheet.style.height = Math.min(full, 15000000) + "px";
    grid.style.height = ids.length ? Math.min(full + 2, 544) + "px" : "0";
    draw();
  };
  const refresh = () => {
    byId("range").hidden = !fields.condition.value;
    const pair = fields.pair?.value || "";
    sideBySide = pair === "" ? null : DATA.pairs[pair];
    byId("job-label").hidden = sideBySide !== null;
    if (fields.pair) byId("came-label").hidden = sideBySide === null;
    const most = sideBySide ? partnersOf(sideBySide).reduce((count, each) => count + (each >= 0), 0) : total;
    const what = sideBySide ? "pairs of episodes" : "episodes";
    ids = chosen();
    active = 0;
    withPictures = ids.some((id) => filmed(id));
    byId("count").textContent = (ids.length === most ? "" : `${ids.length.toLocaleString("en")} of `) + `${most.toLocaleString("en")} ${what}`;
    grid.hidden = !ids.length;
    grid.scrollTop = 0;
    layOut();
  };
  const go = (place) => {
    active = Math.max(0, Math.min(ids.length - 1, place));
    const top = Math.floor(active / columns) * (tileHeight + GAP);
    if (top < grid.scrollTop) grid.scrollTop = top;
    if (top + tileHeight + 2 * GAP > grid.scrollTop + grid.clientHeight) grid.scrollTop = top + tileHeight + 2 * GAP - grid.clientHeight;
    draw();
    sheet.querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
  };
  grid.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
  grid.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, PageDown: 4 * columns, PageUp: -4 * columns };
    const to = event.key === "Home" ? 0 : event.key === "End" ? ids.length - 1 : active + moves[event.key];
    if (Number.isNaN(to)) return;
    event.preventDefault();
    go(to);
  });
  grid.addEventListener("click", (event) => {
    const node = event.target.closest(".tile");
    if (!node) return;
    active = Number(node.dataset.place);
    play(sideBySide ? [ids[active], partner(ids[active])] : [ids[active]]);
  });
  form.addEventListener("input", refresh);
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("resize", layOut);

  // The player: films of one or two episodes, and beside each what its recording says, on one time axis for all of it.
  const player = byId("player");
  let addresses = [], clock = null;
  const addressOf = (film) => {
    if (film.address !== null) return film.address;
    const address = URL.createObjectURL(new Blob([bytesOf(byId(film.name).textContent)], { type: "video/mp4" }));
    addresses.push(address);
    return address;
  };
  const traceOf = (id) => DATA.traces.find((each) => each.job === jobOf[id] && each.episode === episodeIndex(id)) || null;
  const seconds = (time) => time.toFixed(2) + " s";
  const short = (value) => (value === 0 ? "0" : String(Number(value.toPrecision(3))));

  // A panel: the curves of one array, the cursor, and a legend with the values at the cursor.
  const panelOf = (panel, trace, clock) => {
    const dt = trace.dt || clock.dt, at = (k, i) => number(panel.values, k * panel.count + i);
    const bounds = (k) => (panel.low && panel.high && panel.low[k] !== null && panel.high[k] !== null ? [panel.low[k], panel.high[k]] : null);
    const all = Array.from({ length: panel.width }, (_, k) => k);
    // Entries that all have bounds are drawn between these, so that one that lies at its bound is seen as such.
    const inBounds = all.every((k) => bounds(k) && bounds(k)[1] > bounds(k)[0]);
    const drawn = (k, value) => (inBounds ? (value - bounds(k)[0]) / (bounds(k)[1] - bounds(k)[0]) : value);
    let low = inBounds ? 0 : Infinity, high = inBounds ? 1 : -Infinity;
    for (const k of all) for (let i = 0; i < panel.count; i++) {
      const value = drawn(k, at(k, i));
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (!(high > low)) [low, high] = [low - 0.5, high + 0.5];
    const margin = 0.06 * (high - low), x = (i) => (1000 * Math.min(clock.end, (i * panel.stride + panel.first) * dt)) / clock.end;
    const y = (value) => 100 * (1 - (value - low + margin) / (high - low + 2 * margin));
    const svg = shape("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img", "aria-label": `${panel.title}, ${panel.width} curves over ${seconds(clock.end)}` });
    if (inBounds) for (const bound of [0, 1]) svg.append(shape("line", { class: "bound", x1: 0, x2: 1000, y1: y(bound), y2: y(bound) }));
    for (const [, step] of trace.events) svg.append(shape("line", { class: "moment", x1: (1000 * step * dt) / clock.end, x2: (1000 * step * dt) / clock.end, y1: 0, y2: 100 }));
    const legend = make("ul", { class: "legend" });
    const values = all.map((k) => {
      const points = [];
      for (let i = 0; i < panel.count; i++) if (!Number.isNaN(at(k, i))) points.push(`${x(i).toFixed(1)},${y(drawn(k, at(k, i))).toFixed(1)}`);
      if (points.length === 1) points.push(points[0].replace(/^[^,]*/, "1000"));
      const line = shape("polyline", { class: `line k${k % 8}`, points: points.join(" ") }), value = make("b", {});
      svg.append(line);
      const said = bounds(k) ? ` of ${short(bounds(k)[0])} to ${short(bounds(k)[1])}` : "";
      const entry = make("li", { class: `k${k % 8}` }, make("i", { "aria-hidden": "true" }), panel.names[k] ? panel.names[k] + " " : panel.width > 1 ? k + " " : "", value, said);
      entry.addEventListener("pointerenter", () => line.classList.add("strong"));
      entry.addEventListener("pointerleave", () => line.classList.remove("strong"));
      legend.append(entry);
      return value;
    });
    clock.readers.push((time) => {
      const i = Math.max(0, Math.min(panel.count - 1, Math.round((Math.round(time / dt) - panel.first) / panel.stride)));
      values.forEach((node, k) => {
        const value = at(k, i), within = bounds(k);
        node.textContent = Number.isNaN(value) ? "–" : short(value);
        node.classList.toggle("bad", within !== null && (value <= within[0] || value >= within[1]));
      });
    });
    const unit = inBounds ? `${panel.unit ? panel.unit + ", " : ""}between the bounds of each` : panel.unit;
    const ends = inBounds ? ["upper bound", "lower bound"] : [short(high), short(low)];
    return make("figure", { class: "trace" }, make("figcaption", {}, panel.title, unit ? make("span", { class: "small" }, " " + unit) : null),
      make("div", { class: "graph" }, svg, make("i", { class: "cursor" }), make("span", { class: "high" }, ends[0]), make("span", { class: "low" }, ends[1])), legend);
  };

  // The recorded pictures of a camera, which the policy saw, as one sheet.
  const picturesOf = (camera, trace, clock) => {
    const scale = 128 / camera.height, node = make("div", { class: "eye", role: "img", "aria-label": `what the policy saw: ${camera.camera}` });
    node.style.width = camera.width * scale + "px";
    node.style.backgroundImage = `url("data:image/webp;base64,${camera.sheet}")`;
    node.style.backgroundSize = `${camera.width * scale * camera.steps.length}px 128px`;
    clock.readers.push((time) => {
      const step = Math.round(time / (trace.dt || clock.dt));
      let place = 0;
      while (place + 1 < camera.steps.length && camera.steps[place + 1] <= step) place++;
      node.style.backgroundPositionX = -place * camera.width * scale + "px";
    });
    return make("figure", {}, node, make("figcaption", { class: "small" }, `seen by the policy: ${camera.camera}`));
  };

  const side = (id, trace, clock, isPair) => {
    const job = DATA.jobs[jobOf[id]], at = positionOf[id], steps = Number(shown(job.length, at));
    const dt = trace && trace.dt, length = dt ? `${steps} steps, ${seconds(steps * dt)}` : `${steps} steps`;
    const facts = [["outcome", DATA.outcomes[outcomeOf[id]]], ["length", length], ["return", shown(job.return, at)],
      ["ended by", text(job.termination, at)], ["decided by", job.decisive_event ? text(job.decisive_event, at) : null],
      ["instruction", text(job.language_instruction, at)], ["error", text(job.error, at)], ["rank", shown(job.rank, at)]];
    const listOf = (pairs) => {
      const list = make("dl");
      for (const [name, value] of pairs) if (value !== null) list.append(make("dt", {}, name), make("dd", { dir: "auto" }, value));
      return list;
    };
    const videos = filmsOf(id).map((film) => {
      const video = make("video", { muted: "", playsinline: "", "aria-label": `film of ${film.camera}`,
        poster: film.poster ? "data:image/webp;base64," + film.poster : null, preload: "metadata" });
      video.muted = true;
      video.src = addressOf(film);
      video.addEventListener("click", () => toggle());
      video.addEventListener("dblclick", () => video.requestFullscreen?.());
      clock.videos.push(video);
      return video;
    });
    const none = videos.length ? null : make("p", { class: "small" }, "Not filmed. isaaclab-arena film RUN --episodes " + episodeIndex(id) + " makes the film.");
    const conditions = conditionsOf(id);
    const seen = make("div", { class: "seen" }, ...videos, none, make("div", { class: "eyes" }, ...(trace ? trace.pictures.map((each) => picturesOf(each, trace, clock)) : [])));
    const told = make("div", { class: "told" }, listOf(facts), conditions.length ? make("details", isPair ? {} : { open: "" }, make("summary", {}, "Conditions"), listOf(conditions)) : null);
    const curves = make("div", { class: "traces" });
    if (trace) {
      const chips = trace.events.map(([name, step, count]) => {
        const chip = make("button", { type: "button" }, `${name} ${seconds(step * (dt || clock.dt))}${count > 1 ? `, ${count} times` : ""}`);
        chip.addEventListener("click", () => seek(step * (dt || clock.dt), true));
        return chip;
      });
      const more = trace.panels.filter((each) => !each.main);
      curves.append(...(chips.length ? [make("p", { class: "moments" }, "Events: ", ...chips)] : []), ...trace.panels.filter((each) => each.main).map((each) => panelOf(each, trace, clock)),
        make("p", { class: "ends", "aria-label": "time in the episode" }, ...[0, 1, 2, 3, 4].map((k) => make("span", {}, seconds((k * clock.end) / 4)))),
        more.length ? make("details", {}, make("summary", {}, `${more.length} more observation${more.length > 1 ? "s" : ""}`), ...more.map((each) => panelOf(each, trace, clock))) : "");
    } else if (videos.length) curves.append(make("p", { class: "small" }, "No traces of this episode are part of the page: it has no recording, or there was no room."));
    const name = isPair ? make("h3", { class: `how-line c${outcomeOf[id]}` }, make("bdi", {}, job.name)) : null;
    return make("div", { class: "side" }, name, seen, curves, told);
  };

  // One clock moves all films, cursors and values.
  const show = (time) => {
    clock.time = time;
    player.querySelectorAll(".cursor").forEach((each) => { each.style.left = (100 * time) / clock.end + "%"; });
    clock.readers.forEach((read) => read(time));
    byId("position").value = Math.round(time / clock.dt);
    byId("position").setAttribute("aria-valuetext", seconds(time));
    byId("moment").textContent = `${seconds(time)} of ${seconds(clock.end)}, step ${Math.round(time / clock.dt)}`;
  };
  const run = (plays) => {
    if (!clock || !clock.videos.length) return;
    clock.playing = plays;
    byId("play").textContent = plays ? "Pause" : "Play";
    clock.videos.forEach((video) => {
      video.playbackRate = Number(byId("speed").value);
      if (!plays) video.pause();
      else if (!video.ended) video.play().catch(() => {});
    });
    if (plays) requestAnimationFrame(follow);
  };
  const follow = () => {
    if (!clock || !clock.playing) return;
    // The film that goes on longest leads.
    const lead = clock.videos.reduce((best, each) => ((each.duration || 0) > (best.duration || 0) ? each : best));
    if (lead.ended) {
      show(clock.end);
      return run(false);
    }
    if (!lead.seeking) show(Math.min(clock.end, Math.floor(lead.currentTime / clock.dt + 1e-6) * clock.dt));
    requestAnimationFrame(follow);
  };
  const seek = (time, pauses) => {
    if (!clock) return;
    if (pauses) run(false);
    const to = Math.max(0, Math.min(clock.end, Math.round(time / clock.dt) * clock.dt));
    // The middle of a frame, so that rounding shows no other one.
    clock.videos.forEach((video) => { video.currentTime = Math.min(to + clock.dt / 2, Number.isFinite(video.duration) ? video.duration : Infinity); });
    show(to);
  };
  const toggle = () => {
    if (!clock) return;
    if (!clock.playing && clock.time >= clock.end - clock.dt / 2) seek(0, false);
    run(!clock.playing);
  };
  const play = (sides) => {
    const isPair = sides.length > 1, traces = sides.map(traceOf);
    const stepsOf = (id) => Number(shown(DATA.jobs[jobOf[id]].length, positionOf[id])) || 1;
    const dt = traces.find((each) => each && each.dt)?.dt || 0.05;
    clock = { time: 0, dt, end: Math.max(...sides.map((id, k) => stepsOf(id) * (traces[k]?.dt || dt))), videos: [], readers: [], playing: false };
    byId("player-title").replaceChildren(isPair ? "" : make("bdi", {}, DATA.jobs[jobOf[sides[0]]].name + ", "), `episode ${episodeIndex(sides[0])}`);
    byId("player-body").replaceChildren(make("div", { class: isPair ? "sides" : "sides one" }, ...sides.map((id, k) => side(id, traces[k], clock, isPair))));
    const opened = clock, [video] = clock.videos, steps = Math.max(...sides.map(stepsOf));
    // Without a recording, the length of the film says how long a step takes: it has a frame more than there were steps.
    if (video && !traces.some((each) => each && each.dt)) video.addEventListener("loadedmetadata", () => {
      [opened.dt, opened.end] = [video.duration / (steps + 1), (video.duration * steps) / (steps + 1)];
      if (clock === opened) show(clock.time);
    });
    byId("position").max = Math.round(clock.end / clock.dt);
    byId("transport").hidden = !clock.videos.length;
    player.showModal();
    show(0);
    run(true);
  };
  player.addEventListener("close", () => {
    // The event comes late: by then the next film may be shown.
    if (player.open) return;
    clock = null;
    byId("player-body").replaceChildren();
    addresses.forEach((address) => URL.revokeObjectURL(address));
    addresses = [];
  });
  byId("player-close").addEventListener("click", () => player.close());
  byId("play").addEventListener("click", toggle);
  byId("speed").addEventListener("change", () => clock?.videos.forEach((video) => { video.playbackRate = Number(byId("speed").value); }));
  byId("position").addEventListener("input", (event) => seek(event.target.value * clock.dt, true));
  player.addEventListener("click", (event) => { if (event.target === player) player.close(); });
  const seekAt = (event) => {
    const graph = event.target.closest(".graph");
    if (!graph || (event.type === "pointermove" && !event.buttons)) return;
    const box = graph.getBoundingClientRect();
    seek((clock.end * (event.clientX - box.left)) / box.width, true);
  };
  player.addEventListener("pointerdown", seekAt);
  player.addEventListener("pointermove", seekAt);
  player.addEventListener("keydown", (event) => {
    if (!clock || event.target.matches("select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = event.shiftKey ? 10 : 1, here = clock.time, to = { ArrowLeft: here - steps * clock.dt, ArrowRight: here + steps * clock.dt, Home: 0, End: clock.end }[event.key];
    if (to !== undefined) seek(to, true);
    else if (event.key === " " && !event.target.matches("button, summary")) toggle();
    else return;
    event.preventDefault();
  });

  // Buttons that copy, and the table of jobs.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    const pair = event.target.closest("[data-pair]");
    const all = event.target.closest("[data-all]");
    if (all) {
      form.reset();
      fields.pair.value = all.dataset.all;
      refresh();
      byId("episodes").scrollIntoView();
      fields.pair.focus({ preventScroll: true });
    }
    if (pair) play(JSON.parse(pair.dataset.pair).map(([job, episode]) => find(job, episode)).filter((id) => id >= 0));
    if (!button) return;
    const said = byId(button.dataset.copy).textContent;
    try { await navigator.clipboard.writeText(said); } catch {
      const area = make("textarea", {}, said);
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  const body = document.querySelector(".forest:not(.suites) tbody");
  const lines = [...body.rows];
  const order = () => {
    const by = byId("order")?.value || "plan", key = byId("group")?.value || "";
    const value = (line) => JSON.parse(line.dataset.keys)[key] ?? "–";
    const sorted = [...lines];
    if (by === "rate") sorted.sort((a, b) => b.dataset.rate - a.dataset.rate);
    if (by === "name") sorted.sort((a, b) => a.cells[0].textContent.localeCompare(b.cells[0].textContent, "en", { numeric: true }));
    if (!key) return body.replaceChildren(...sorted);
    const groups = new Map();
    for (const line of sorted) groups.set(value(line), [...(groups.get(value(line)) || []), line]);
    const names = [...groups.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    body.replaceChildren(...names.flatMap((name) =>
      [make("tr", { class: "group" }, make("td", { colspan: 8 }, make("bdi", {}, `${key.split(".").pop()} ${name}`))), ...groups.get(name)]));
  };
  byId("order")?.addEventListener("change", order);
  byId("group")?.addEventListener("change", order);
  const openTarget = () => { const target = location.hash && byId(location.hash.slice(1)); if (target && target.tagName === "DETAILS") target.open = true; };
  addEventListener("hashchange", openTarget);
  openTarget();

  // A run that goes on: the page loads itself again and looks as before, but not while a film plays or the reader types.
  const controls = () => [...document.querySelectorAll("select, input")];
  if (DATA.reloads) {
    try {
      const kept = JSON.parse(sessionStorage.getItem(sessionKey) || "null");
      if (kept) {
        controls().forEach((control, number) => { if (kept.values[number] !== undefined) control.value = kept.values[number]; });
        document.querySelectorAll("details").forEach((each, number) => { each.open = kept.open[number] ?? each.open; });
        order();
        requestAnimationFrame(() => scrollTo(0, kept.scroll));
      }
    } catch { /* a page without storage begins anew */ }
    const again = () => {
      if (player.open || document.hidden || document.activeElement?.matches("input")) return setTimeout(again, 5000);
      try {
        sessionStorage.setItem(sessionKey, JSON.stringify({ scroll: scrollY, values: controls().map((each) => each.value),
          open: [...document.querySelectorAll("details")].map((each) => each.open) }));
      } catch { /* see above */ }
      location.reload();
    };
    setTimeout(again, 30000);
  }
  refresh();
})();
