"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const DATA = JSON.parse(byId("data").textContent);
  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
    node.append(...children.filter((child) => child !== null));
    return node;
  };
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

  // The player: a film with what the episode started from, or two of them side by side.
  const player = byId("player");
  let addresses = [];
  const addressOf = (film) => {
    if (film.address !== null) return film.address;
    const address = URL.createObjectURL(new Blob([bytesOf(byId(film.name).textContent)], { type: "video/mp4" }));
    addresses.push(address);
    return address;
  };
  const side = (id, withName) => {
    const job = DATA.jobs[jobOf[id]], at = positionOf[id];
    const facts = [["outcome", DATA.outcomes[outcomeOf[id]]], ["length", shown(job.length, at) + " steps"], ["return", shown(job.return, at)],
      ["ended by", text(job.termination, at)], ["decided by", job.decisive_event ? text(job.decisive_event, at) : null], ["instruction", text(job.language_instruction, at)], ["error", text(job.error, at)],
      ["rank", shown(job.rank, at)], ...conditionsOf(id)];
    const list = make("dl");
    for (const [name, value] of facts) if (value !== null) list.append(make("dt", {}, name), make("dd", { dir: "auto" }, value));
    const videos = filmsOf(id).map((film) => {
      const video = make("video", { controls: "", muted: "", loop: "", playsinline: "", "aria-label": `film of ${film.camera}`,
        poster: film.poster ? "data:image/webp;base64," + film.poster : null, preload: "metadata" });
      video.muted = true;
      video.src = addressOf(film);
      return video;
    });
    const none = videos.length ? null : make("p", { class: "small" }, "Not filmed. isaaclab-arena film RUN --episodes " + episodeIndex(id) + " makes the film.");
    return make("div", {}, withName ? make("h3", { class: `how-line c${outcomeOf[id]}` }, make("bdi", {}, job.name)) : null, ...videos, none, list);
  };
  const play = (sides) => {
    byId("player-title").replaceChildren(sides.length > 1 ? "" : make("bdi", {}, DATA.jobs[jobOf[sides[0]]].name + ", "), `episode ${episodeIndex(sides[0])}`);
    byId("player-body").replaceChildren(make("div", { class: "sides" }, ...sides.map((id) => side(id, sides.length > 1))));
    player.showModal();
    player.querySelectorAll("video").forEach((video) => video.play().catch(() => {}));
  };
  player.addEventListener("close", () => {
    // The event comes late: by then the next film may be shown.
    if (player.open) return;
    byId("player-body").replaceChildren();
    addresses.forEach((address) => URL.revokeObjectURL(address));
    addresses = [];
  });
  byId("player-close").addEventListener("click", () => player.close());
  player.addEventListener("click", (event) => { if (event.target === player) player.close(); });

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
