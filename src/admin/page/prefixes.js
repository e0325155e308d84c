// The beginnings that most prompts share, by hashed name, and who holds them.

import { ago, amount, bytes, make, table, watch, whole } from "./tools.js";

const EVERY = 5000;

const columns = [
  { head: "prefix", kind: "word", of: t => make("code", "", t.name) },
  { head: "length", unit: "blocks", short: "blocks", of: t => whole(t.blocks) },
  { head: "size", unit: "of text, about", of: t => bytes(t.bytes) },
  { head: "uses", unit: "lately", of: t => amount(t.uses) },
  { head: "sessions", unit: "about", of: t => whole(t.sessions) },
  { head: "last used", of: t => ago(Date.now() / 1000 - t.last_used) },
  { head: "held by", kind: "word free whole", of: t => held(t.holders) },
];

function held(holders) {
  if (!holders.length) return "nobody, as far as is known";
  const some = holders.slice(0, 6).join(", ");
  return holders.length > 6 ? `${some} and ${holders.length - 6} more` : some;
}

export default {
  title: "Prefixes",
  open(root) {
    const list = table({ columns, key: t => `${t.name} ${t.blocks}`, none: "No beginning is shared by several sessions yet." });
    const told = make("span", "faint", "");
    const error = make("p", "note bad", "");
    const note = "Of prompts of different sessions that begin alike, the longest common beginnings; first those that save most " +
      "reading. Names are hashes with a secret of this fleet: no text can be found from them. A use counts half after half an hour.";
    root.append(make("section", "", make("div", "head", make("h2", "", "Trunks most shared"), told), make("p", "note", note), error, list.element));
    const close = watch("/api/prefixes", EVERY, all => {
      told.textContent = `${whole(all.index_blocks)} blocks of ${bytes(all.block_bytes)} in the index, ${bytes(all.index_bytes)}`;
      list.show(all.trunks);
    }, error);
    return { close };
  },
};
