// The configuration in force, key by key. Secrets are never sent here.

import { get, make, table } from "./tools.js";

const columns = [
  { head: "setting", kind: "word free", of: s => make("code", "", s.path) },
  { head: "value", kind: "word free whole", of: s => make("code", "", s.value) },
  { head: "default", kind: "word free whole", of: s => make("code", "faint", s.default === "" ? "–" : s.default === s.value ? "the same" : s.default) },
];

export default {
  title: "Configuration",
  open(root, store) {
    const list = table({ columns, key: s => s.path, none: "No setting matches." });
    const filter = make("input", "");
    filter.type = "search";
    filter.placeholder = "part of a name or a value";
    const differs = make("input", "");
    differs.type = "checkbox";
    differs.checked = true;
    const told = make("span", "faint", "");
    const error = make("p", "note bad", "");
    root.append(make("section", "", make("div", "head", make("h2", "", "Configuration in force"), told,
      make("label", "", differs, "only what differs from the default"), make("label", "", "Filter", filter)),
    make("p", "note", "As read from the file, the environment and the flags. Of secrets it says that they are set, and never what they are."),
    error, list.element));
    let all = [];
    let generation = null;
    function show() {
      const wanted = filter.value.trim().toLowerCase();
      const fits = s => `${s.path} ${s.value}`.toLowerCase().includes(wanted) && (!differs.checked || s.value !== s.default);
      const rows = all.filter(fits);
      list.show(rows);
      told.textContent = all.length ? `configuration number ${generation}, ${rows.length} of ${all.length} settings` : "";
    }
    let isAsking = false;
    async function ask() {
      if (isAsking) return;
      isAsking = true;
      try {
        const answer = await get("/api/config");
        [all, generation] = [answer.settings, answer.generation];
        error.textContent = "";
        show();
      } catch (problem) {
        error.textContent = `It cannot be asked: ${problem.message}`;
      } finally {
        isAsking = false;
      }
    }
    filter.addEventListener("input", show);
    differs.addEventListener("change", show);
    ask();
    return {
      tell(what) {
        // and again, where it could not be asked
        if (what === "now" && store.now.generation !== generation) ask();
      },
    };
  },
};
