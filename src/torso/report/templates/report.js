"use strict";
(() => {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const root = document.documentElement;

  // theme: the system's until the reader switches
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const now = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const say = () => { button.lastElementChild.textContent = now() === "dark" ? "Light" : "Dark"; };
  try { const kept = localStorage.getItem("torso-theme"); if (kept === "dark" || kept === "light") root.dataset.theme = kept; } catch { /* no storage */ }
  button.addEventListener("click", () => {
    root.dataset.theme = now() === "dark" ? "light" : "dark";
    try { localStorage.setItem("torso-theme", root.dataset.theme); } catch { /* no storage */ }
    say();
  });
  dark.addEventListener("change", say);
  say();

  // tables: by value, numbers before words, empty cells last in both directions
  const value = (row, column) => {
    const text = row.cells[column].dataset.value ?? row.cells[column].textContent;
    return text === "" ? null : isNaN(text) ? text : Number(text);
  };
  const order = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const head of table.tHead.rows[0].cells) {
      head.querySelector("button").addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === (head.classList.contains("n") ? "none" : "ascending");
        const column = head.cellIndex, body = table.tBodies[0];
        for (const other of head.parentNode.cells) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows].map((row) => [value(row, column), row]);
        rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : down ? order(b, a) : order(a, b)));
        body.append(...rows.map(([, row]) => row));
      });
    }
  }

  // another baseline
  document.getElementById("baseline").addEventListener("change", (event) => {
    const against = data.differences[event.target.value];
    for (const row of document.querySelectorAll("#methods tbody tr")) {
      for (const cell of row.querySelectorAll(".difference")) {
        const found = against[row.dataset.place][cell.dataset.measure];
        cell.textContent = found.text;
        cell.title = found.why;
        cell.classList.toggle("clear", found.sure);
      }
    }
  });

  // files
  const save = (text, type, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const PAINT = ["fill", "stroke", "font-family", "font-weight"];
  const standalone = (svg) => {
    const copy = svg.cloneNode(true), box = svg.viewBox.baseVal;
    const from = svg.querySelectorAll("*"), to = copy.querySelectorAll("*");
    from.forEach((element, i) => {
      const style = getComputedStyle(element);
      for (const name of PAINT) if (element.tagName === "text" || !name.startsWith("font")) to[i].setAttribute(name, style.getPropertyValue(name));
      to[i].removeAttribute("class");
    });
    copy.setAttribute("width", box.width);
    copy.setAttribute("height", box.height);
    copy.style.background = getComputedStyle(document.documentElement).backgroundColor;
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + new XMLSerializer().serializeToString(copy);
  };
  const unpacked = (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const quoted = (text) => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  document.addEventListener("click", async (event) => {
    const pressed = event.target.closest("button");
    if (!pressed) return;
    const figure = pressed.closest("figure");
    if (pressed.dataset.save === "svg") save(standalone(figure.querySelector("svg")), "image/svg+xml", `${figure.dataset.kind}.svg`);
    if (pressed.dataset.save === "csv") save(await unpacked(data.csv[figure.id]), "text/csv", `${figure.dataset.kind}.csv`);
    if (pressed.dataset.saveTable) {
      const table = document.getElementById(pressed.dataset.saveTable);
      const lines = [...table.rows].map((row) => [...row.cells].map((cell) => quoted(cell.innerText.replace(/\s+/g, " ").trim())).join(","));
      save(lines.join("\n") + "\n", "text/csv", "comparison.csv");
    }
    if ("copy" in pressed.dataset) {
      const code = pressed.parentNode.querySelector("code");
      try { await navigator.clipboard.writeText(code.textContent); } catch {
        getSelection().selectAllChildren(code);
        document.execCommand("copy");
      }
      pressed.textContent = "Copied";
      setTimeout(() => { pressed.textContent = "Copy"; }, 1500);
    }
  });
})();
