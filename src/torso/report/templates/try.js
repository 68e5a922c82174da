"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const made = (tag, words, name) => Object.assign(document.createElement(tag), { textContent: words, className: name || "" });
  let asked = 0, shown = "";

  const bar = (found) => {
    const line = document.createElement("li"), track = made("div", "", "track"), fill = document.createElement("i");
    fill.style.width = `${100 * found.probability}%`;
    track.append(fill);
    line.append(made("span", found.name), made("span", `${(100 * found.probability).toFixed(1)} %`), track);
    return line;
  };
  const said = (model) => {
    const bars = made("ol", "", "bars"), seen = made("div", "", "seen"), picture = document.createElement("img"), notes = document.createElement("ul");
    bars.append(...model.classes.map(bar));
    picture.src = model.seen;
    picture.alt = "What the model sees";
    notes.append(...(model.seen ? [made("li", "What the model sees")] : []), ...model.remarks.map((words) => made("li", words)));
    seen.append(...(model.seen ? [picture] : []), notes);
    return [bars, seen];
  };
  const fail = (words) => {
    at("error").textContent = words;
    at("error").hidden = !words;
  };
  const answered = async (body) => {
    try {
      return await (await fetch("ask", { method: "POST", body })).json();
    } catch {
      return { error: "torso try does not answer. Is it still running?" };
    }
  };
  const boxes = [...document.querySelectorAll(".said")];
  const askText = async (words) => {
    const mine = ++asked;
    fail("");
    if (!words.trim()) {
      boxes.forEach((box) => box.replaceChildren());
      return;
    }
    at("state").textContent = "asking …";
    const answer = await answered(words);
    if (mine !== asked) return; // more was written
    at("state").textContent = "";
    if (answer.error) fail(answer.error);
    else answer.models.forEach((model, place) => boxes[place].replaceChildren(...said(model)));
  };
  const ask = async (file) => {
    if (!file) return;
    const mine = ++asked;
    fail("");
    boxes.forEach((box) => box.replaceChildren());
    if (shown) URL.revokeObjectURL(shown);
    shown = URL.createObjectURL(file);
    if (file.size > Number(at("drop").dataset.most)) {
      at("given").hidden = true;
      fail("The file is too large.");
      return;
    }
    at("given").src = shown;
    at("given").hidden = false;
    at("state").textContent = "asking …";
    const answer = await answered(file);
    if (mine !== asked) return; // another image has come
    at("state").textContent = file.name || "";
    if (answer.error) {
      at("given").hidden = true;
      fail(answer.error);
      return;
    }
    answer.models.forEach((model, place) => boxes[place].replaceChildren(...said(model)));
  };

  if (at("words")) {
    let waiting = 0;
    at("words").addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => askText(at("words").value), 250);
    });
    at("words").focus();
    return;
  }
  at("file").addEventListener("change", () => ask(at("file").files[0]));
  for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      at("drop").classList.toggle("over", kind === "dragenter" || kind === "dragover");
      if (kind === "drop") ask(event.dataTransfer.files[0]);
    });
  }
  document.addEventListener("paste", (event) => ask(event.clipboardData.files[0]));
})();
