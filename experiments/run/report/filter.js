// Filters the rows of the ledger by words, verdict, type, topic and source; the page is whole without it.
// The address keeps what is chosen, as #text=cube&verdict=differs+failed&topic=scale, so that a view can be linked.
"use strict";
(() => {
  const box = document.getElementById("filter");
  if (!box) return;
  const search = document.getElementById("filter-text");
  const lists = [...box.querySelectorAll("select")];
  const buttons = [...box.querySelectorAll("button[data-verdict]")];
  const clear = document.getElementById("filter-clear");
  const shown = document.getElementById("filter-count");
  const plain = (text) => text.normalize("NFKC").toLowerCase().replace(/\s+/g, " ").trim();
  const rows = [...document.querySelectorAll("#claims tbody tr")];
  // Formulas are searched as they are drawn and as they are written on one line.
  const written = (row) => [...row.querySelectorAll("math")].map((formula) => formula.getAttribute("alttext")).join(" ");
  const texts = new Map(rows.map((row) => [row, plain(`${row.textContent} ${written(row)} ${row.dataset.source}`)]));
  const parts = [...document.querySelectorAll("#claims .group, #claims section.rows")];

  const verdicts = () => buttons.filter((each) => each.getAttribute("aria-pressed") === "true").map((each) => each.dataset.verdict);

  // Whether a row passes every filter but one.
  function test(but) {
    const words = plain(search.value).split(" ");
    const chosen = verdicts();
    return (row) =>
      words.every((word) => texts.get(row).includes(word)) &&
      (but === "verdict" || !chosen.length || chosen.includes(row.dataset.verdict)) &&
      lists.every((list) => list.name === but || !list.value || row.dataset[list.name] === list.value);
  }

  // Rows that would be left, by their value of one filter.
  function count(name) {
    const counts = new Map([["", 0]]);
    for (const row of rows.filter(test(name))) {
      counts.set("", counts.get("") + 1);
      counts.set(row.dataset[name], (counts.get(row.dataset[name]) || 0) + 1);
    }
    return (value) => counts.get(value) || 0;
  }

  function show() {
    const passes = test("");
    let left = 0;
    for (const row of rows) {
      row.hidden = !passes(row);
      left += !row.hidden;
    }
    for (const part of parts) part.hidden = ![...part.querySelectorAll("tbody tr")].some((row) => !row.hidden);
    const each = count("verdict");
    for (const button of buttons) button.querySelector(".count").textContent = each(button.dataset.verdict);
    for (const list of lists) {
      const number = count(list.name);
      for (const option of list.options) option.textContent = `${option.dataset.label} (${number(option.value)})`;
    }
    shown.textContent = `${left} of ${rows.length} rows shown`;
    clear.disabled = left === rows.length && !search.value;
  }

  function read(fragment) {
    const asked = new URLSearchParams(fragment);
    const pressed = (asked.get("verdict") || "").split(" ");
    search.value = asked.get("text") || "";
    for (const button of buttons) button.setAttribute("aria-pressed", String(pressed.includes(button.dataset.verdict)));
    for (const list of lists) {
      const value = asked.get(list.name) || "";
      list.value = [...list.options].some((option) => option.value === value) ? value : "";
    }
  }

  function write() {
    const chosen = new URLSearchParams();
    if (search.value.trim()) chosen.set("text", search.value.trim());
    if (verdicts().length) chosen.set("verdict", verdicts().join(" "));
    for (const list of lists) if (list.value) chosen.set(list.name, list.value);
    history.replaceState(null, "", `#${chosen.toString() || "claims"}`);
  }

  // A filter in the address is applied; a link to a claim that is filtered away takes the filter off.
  function follow() {
    const fragment = location.hash.slice(1);
    if (fragment.includes("=")) {
      read(fragment);
      show();
      document.getElementById("claims").scrollIntoView({ behavior: "instant" });
      return;
    }
    const target = fragment && document.getElementById(decodeURIComponent(fragment));
    if (target && target.hidden) {
      read("");
      show();
      target.scrollIntoView();
    }
  }

  function change() {
    show();
    write();
  }

  search.addEventListener("input", change);
  for (const list of lists) list.addEventListener("change", change);
  for (const button of buttons) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      change();
    });
  }
  clear.addEventListener("click", () => {
    read("");
    change();
    search.focus();
  });
  addEventListener("hashchange", follow);
  box.hidden = false;
  read("");
  show();
  follow();
})();
