//! The lists of models that engines show on `/v1/models`: read as text, so that what is not understood survives, and
//! merged into the one that ramjet shows.
//!
//! An adapter (LoRA) is an entry like any other, with the model that it belongs to as its `parent`. Only replicas that
//! list it are asked for it; one that is loaded while its engine runs is found when it is asked for (`engine/search.rs`).
//! An engine that loads adapters only once they are asked for lists them nowhere until then, and ramjet does not send it
//! names at a venture: each wrong one would cost a prompt. Such adapters are named in the `models` of its replica.

use super::json::{Cursor, Malformed};
use super::model::{Aliases, escaped};
use crate::pack::Pack;
use std::collections::BTreeMap;
use std::ops::Range;

/// Engines that answer to any name (as `owned_by` has it): what they list is what they like to be called.
const EASYGOING: [&str; 2] = ["llamacpp", "sglang"];

/// What one engine lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    entries: Vec<Entry>,
    is_easygoing: bool,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    id: String,
    /// Of an adapter, the model that it belongs to.
    parent: Option<String>,
    /// The whole object.
    text: String,
    /// Where the value of `id` stands in it, quotes included.
    id_span: Range<usize>,
    /// Where the value of `max_model_len` stands, and that value.
    length: Option<(Range<usize>, u64)>,
}

impl Catalogue {
    /// Reads an answer; what has no `id` is left out.
    ///
    /// # Errors
    /// [`Malformed`] if it is no object with a list `data`.
    pub fn read(answer: &[u8]) -> Result<Self, Malformed> {
        let mut out = None;
        Cursor::new(answer).object(|key, value| {
            if !key.is("data") {
                return value.skip().map(drop);
            }
            let mut list = Catalogue::default();
            value.array(|item| {
                let (entry, is_easygoing) = entry(item.skip()?)?;
                list.entries.extend(entry);
                list.is_easygoing |= is_easygoing;
                Ok(())
            })?;
            out = Some(list);
            Ok(())
        })?;
        out.ok_or(Malformed { at: answer.len() })
    }

    /// Whether it lists nothing.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether it lists `model`, under its own name or as SGLang lets clients call an adapter: `PARENT:ADAPTER`.
    pub fn lists(&self, model: &str) -> bool {
        let adapter = model.rsplit_once(':').filter(|_| self.is_easygoing);
        let is_adapter = |entry: &Entry| {
            adapter.is_some_and(|(parent, id)| entry.id == id && entry.parent.as_deref() == Some(parent))
        };
        self.entries.iter().any(|entry| entry.id == model || is_adapter(entry))
    }

    /// The same for a replica of which it is said what it serves: only that, whether its engine lists it or not.
    #[must_use]
    pub fn restricted(mut self, models: &[String]) -> Self {
        if !models.is_empty() {
            self.entries.retain(|entry| models.contains(&entry.id));
            let unlisted: Vec<_> = models.iter().filter(|model| !self.lists(model)).map(|m| Entry::bare(m)).collect();
            self.entries.extend(unlisted);
        }
        self
    }

    /// Whether its engine takes names that it does not list.
    pub fn is_easygoing(&self) -> bool {
        self.is_easygoing
    }

    /// Whether its engine serves other models than these: it lists some, none of them, and refuses names that it does not
    /// list. Where a tag is left out, `latest` is meant.
    pub fn lacks_all(&self, models: &[String]) -> bool {
        let is_one = |id: &str| models.iter().any(|m| m == id || id.strip_suffix(":latest") == Some(m));
        !models.is_empty() && !self.is_easygoing && !self.is_empty() && !self.names().any(is_one)
    }

    /// The names that it lists, with their context lengths where it tells.
    pub fn lengths(&self) -> impl Iterator<Item = (&str, Option<u64>)> {
        self.entries.iter().map(|entry| (entry.id.as_str(), entry.length.as_ref().map(|(_, length)| *length)))
    }

    /// The names that it lists.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.id.as_str())
    }
}

impl Pack for Catalogue {
    /// As the texts of its entries, which are read anew.
    fn pack(&self, out: &mut Vec<u8>) {
        let texts: Vec<String> = self.entries.iter().map(|entry| entry.text.clone()).collect();
        (texts, self.is_easygoing).pack(out);
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        let (texts, is_easygoing) = <(Vec<String>, bool)>::unpack(from)?;
        let entries = texts.iter().map(|text| entry(text.as_bytes()).ok()?.0).collect::<Option<_>>()?;
        Some(Catalogue { entries, is_easygoing })
    }
}

/// The entry in `text`, if it has an id, and whether its engine takes any name.
fn entry(text: &[u8]) -> Result<(Option<Entry>, bool), Malformed> {
    let (mut id, mut parent, mut length, mut is_easygoing) = (None, None, None, false);
    if !text.starts_with(b"{") {
        return Ok((None, false));
    }
    Cursor::new(text).object(|key, value| {
        let start = value.offset();
        let string = value.clone().string().ok();
        let raw = value.skip()?;
        let span = start..start + raw.len();
        match key.position(&["id", "max_model_len", "parent", "owned_by"]) {
            Some(0) => id = string.map(|id| (id.text(), span)),
            Some(2) => parent = string.map(|parent| parent.text()),
            Some(1) => length = std::str::from_utf8(raw).ok().and_then(|n| Some((span, n.parse().ok()?))),
            Some(_) => is_easygoing = string.is_some_and(|s| s.position(&EASYGOING).is_some()),
            None => {}
        }
        Ok(())
    })?;
    let text = String::from_utf8(text.to_vec()).ok();
    let entry = id.zip(text).map(|((id, id_span), text)| Entry { id, parent, text, id_span, length });
    Ok((entry, is_easygoing))
}

impl Entry {
    /// An entry of which nothing but the name is known.
    fn bare(id: &str) -> Entry {
        let name = format!("\"{}\"", escaped(id));
        let id_span = r#"{"id":"#.len()..r#"{"id":"#.len() + name.len();
        let text = format!(r#"{{"id":{name},"object":"model"}}"#);
        Entry { id: id.to_owned(), parent: None, text, id_span, length: None }
    }

    /// Its text under `id`, with room for `margin` tokens left in the context length. A context that is no longer than
    /// the margin stays as it is.
    fn shown(&self, id: &str, margin: u64) -> String {
        let mut edits = Vec::new();
        if id != self.id {
            edits.push((self.id_span.clone(), format!("\"{}\"", escaped(id))));
        }
        if let Some((span, length)) = &self.length
            && *length > margin
        {
            edits.push((span.clone(), (length - margin).to_string()));
        }
        edits.sort_by_key(|(span, _)| span.start);
        let mut out = self.text.clone();
        for (span, text) in edits.into_iter().rev() {
            out.replace_range(span, &text);
        }
        out
    }

    /// Of two entries for one model, the one that promises less: a client must get along with either.
    fn is_shorter_than(&self, other: &Entry) -> bool {
        self.length.as_ref().zip(other.length.as_ref()).is_some_and(|((_, own), (_, other))| own < other)
    }
}

/// The models of several engines by name, each once, in the order of first mention, aliases of known ones last.
pub fn merged<'a>(
    catalogues: impl IntoIterator<Item = &'a Catalogue>,
    aliases: &Aliases,
    margin: u64,
) -> Vec<(String, String)> {
    let mut order: Vec<&Entry> = Vec::new();
    let mut places = BTreeMap::new();
    for entry in catalogues.into_iter().flat_map(|catalogue| &catalogue.entries) {
        let place = *places.entry(entry.id.as_str()).or_insert(order.len());
        match order.get_mut(place) {
            None => order.push(entry),
            Some(known) if entry.is_shorter_than(known) => *known = entry,
            Some(_) => {}
        }
    }
    let own = order.iter().map(|entry| (entry.id.clone(), entry.shown(&entry.id, margin)));
    let known = |(alias, model): (&str, &str)| {
        let entry = order[*places.get(model)?];
        (!places.contains_key(alias)).then(|| (alias.to_owned(), entry.shown(alias, margin)))
    };
    let mut others: Vec<_> = aliases.iter().filter_map(known).collect();
    others.sort();
    own.chain(others).collect()
}

/// The answer to `/v1/models`.
pub fn list(models: &[(String, String)]) -> String {
    let entries: Vec<&str> = models.iter().map(|(_, entry)| entry.as_str()).collect();
    format!(r#"{{"object":"list","data":[{}]}}"#, entries.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Catalogue {
        Catalogue::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn models_are_merged_once_with_all_that_stands_there() {
        let a = read(
            r#"{"object":"list","data":[{"id":"m1","x": 1.50,"max_model_len":131072},{"id":"ad\u0061pter","parent":"m1"}]}"#,
        );
        let b =
            read(r#"{"data":[{"max_model_len": 65536 , "id":"m1"},{"id":"m2","max_model_len":4096},{"no":"id"},7]}"#);
        let aliases = Aliases::new([
            ("fast".to_owned(), "m2".to_owned()),
            ("m2".to_owned(), "m1".to_owned()),
            ("gone".to_owned(), "m9".to_owned()),
        ]);
        let all = merged([&a, &b], &aliases, 16384);
        assert_eq!(
            list(&all),
            concat!(
                r#"{"object":"list","data":[{"max_model_len": 49152 , "id":"m1"},{"id":"ad\u0061pter","parent":"m1"},"#,
                r#"{"id":"m2","max_model_len":4096},{"id":"fast","max_model_len":4096}]}"#
            )
        );
        assert_eq!(all.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["m1", "adapter", "m2", "fast"]);
        assert_eq!(merged([&a], &Aliases::default(), 0)[0].1, r#"{"id":"m1","x": 1.50,"max_model_len":131072}"#);
        assert_eq!(list(&[]), r#"{"object":"list","data":[]}"#);
    }

    #[test]
    fn what_is_no_list_is_refused_and_engines_that_take_any_name_are_known() {
        for text in ["", "[]", "{}", r#"{"data":7}"#, r#"{"data":[{"id":"m1"}"#, r#"{"data":[{"id" 1}]}"#] {
            assert!(Catalogue::read(text.as_bytes()).is_err(), "{text}");
        }
        let listed = read(r#"{"data":[{"id":"m1","owned_by":"vllm"}]}"#);
        assert!(listed.lists("m1") && !listed.lists("m") && !listed.is_easygoing() && !listed.is_empty());
        assert!(read(r#"{"data":[{"id":"m1","owned_by":"llamacpp"}]}"#).is_easygoing());
        assert!(read(r#"{"data":[]}"#).is_empty());
        let wrong = |text: &str, models: &[&str]| {
            read(text).lacks_all(&models.iter().map(|m| (*m).to_owned()).collect::<Vec<_>>())
        };
        assert!(wrong(r#"{"data":[{"id":"m2"},{"id":"m3"}]}"#, &["m1"]) && !listed.lacks_all(&[]));
        assert!(!wrong(r#"{"data":[{"id":"m2"},{"id":"m1"}]}"#, &["m1", "m9"]) && !wrong(r#"{"data":[]}"#, &["m1"]));
        assert!(!wrong(r#"{"data":[{"id":"m2","owned_by":"llamacpp"}]}"#, &["m1"]));
        assert!(!wrong(r#"{"data":[{"id":"m1:latest"}]}"#, &["m1"]) && wrong(r#"{"data":[{"id":"m1:8b"}]}"#, &["m1"]));
        for (owner, both_names) in [("sglang", true), ("vllm", false)] {
            let list = r#"{"data":[{"id":"m1","owned_by":"OWNER"},{"id":"a","parent":"m1"},{"id":"b","parent":null}]}"#;
            let known = read(&list.replace("OWNER", owner));
            assert!(known.lists("a") && known.lists("m1") && known.lists("m1:a") == both_names);
            for other in ["m1:b", "m2:a", ":a", "m1:", "m1:m1"] {
                assert!(!known.lists(other), "{owner} {other}");
            }
        }
        let two = read(r#"{"data":[{"id":"m1","x":1},{"id":"m2"}]}"#).restricted(&["m1".to_owned(), "m\"3".to_owned()]);
        let shown = merged([&two], &Aliases::new([("a".to_owned(), "m\"3".to_owned())]), 0);
        assert_eq!(shown[0].1, r#"{"id":"m1","x":1}"#);
        assert_eq!(shown[1].1, r#"{"id":"m\"3","object":"model"}"#);
        assert_eq!(shown[2].1, r#"{"id":"a","object":"model"}"#);
        assert_eq!(shown.len(), 3);
    }

    proptest! {
        #[test]
        fn what_is_shown_is_json_whatever_the_names(ids in prop::collection::vec("\\PC{0,8}", 0..6), alias in "\\PC{1,8}") {
            let entries: Vec<_> = ids.iter().map(|id| serde_json::json!({ "id": id, "max_model_len": 20_000 })).collect();
            let text = serde_json::json!({ "data": entries }).to_string();
            let target = ids.first().cloned().unwrap_or_default();
            let all = merged([&read(&text), &read(&text)], &Aliases::new([(alias, target)]), 5_000);
            let shown: serde_json::Value = serde_json::from_str(&list(&all)).unwrap();
            let shown = shown["data"].as_array().unwrap();
            prop_assert!(shown.iter().all(|entry| entry["max_model_len"] == 15_000));
            let names: std::collections::BTreeSet<_> = shown.iter().map(|e| e["id"].as_str().unwrap()).collect();
            prop_assert_eq!(names.len(), shown.len());
            prop_assert!(ids.iter().all(|id| names.contains(id.as_str())));
        }
    }
}
