"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  let chosen = null, drawn = "";
  const span = (s) => s < 90 ? `${Math.round(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
  const made = (tag, words, name) => Object.assign(document.createElement(tag), { textContent: words, className: name || "" });

  const when = (run) => {
    if (run.status === "ok") return "done";
    if (run.status !== "unfinished") return run.status;
    if (run.quiet !== null) return `nothing written for ${span(run.quiet)}: stopped?`;
    return run.left === null ? "starting" : run.round >= run.rounds ? "measuring" : `${span(run.left)} left`;
  };
  const row = (run) => {
    const line = document.createElement("li"), name = made("button", run.name), bar = document.createElement("progress");
    name.type = "button";
    name.setAttribute("aria-pressed", run.path === chosen);
    name.addEventListener("click", () => { chosen = run.path; at("logname").textContent = run.name; tick(); });
    bar.max = Math.max(1, run.rounds);
    bar.value = run.status === "ok" ? bar.max : run.round;
    bar.setAttribute("aria-label", `${run.name}: round ${run.round} of ${run.rounds}`);
    const bad = run.quiet !== null || (run.status !== "ok" && run.status !== "unfinished");
    line.append(name, bar, made("span", `${run.round} / ${run.rounds}`), made("span", [when(run), run.news, ...run.problems].filter(Boolean).join(" · "), bad ? "failed" : "news"));
    return line;
  };
  const tick = async () => {
    const state = await (await fetch("state.json")).json();
    const focused = [...at("runs").querySelectorAll("button")].indexOf(document.activeElement);
    at("runs").replaceChildren(...state.runs.map(row));
    if (focused >= 0) at("runs").querySelectorAll("button")[focused]?.focus();
    at("none").hidden = state.runs.length > 0;
    const now = JSON.stringify(state.charts);
    if (now !== drawn) {
      at("charts").replaceChildren(...state.charts.map((chart) => {
        const figure = document.createElement("figure"), caption = document.createElement("figcaption"), box = document.createElement("div");
        caption.append(made("h3", chart.title), made("p", chart.note));
        box.innerHTML = chart.svg; // drawn and escaped by torso
        figure.append(caption, box);
        return figure;
      }));
      drawn = now;
    }
    if (chosen === null && state.runs.length) { chosen = state.runs[0].path; at("logname").textContent = state.runs[0].name; }
    if (chosen !== null) {
      const answer = await fetch(`log?run=${encodeURIComponent(chosen)}`);
      const log = at("log"), low = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
      log.textContent = answer.ok ? await answer.text() : "this run does not exist any more";
      at("logbox").hidden = false;
      if (low) log.scrollTop = log.scrollHeight;
    }
    at("pulse").textContent = `as of ${new Date().toLocaleTimeString()}`;
  };
  const follow = async () => {
    try { await tick(); } catch { at("pulse").textContent = "torso watch has ended"; }
    setTimeout(follow, 2000);
  };
  follow();
})();
