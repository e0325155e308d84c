//! Prompts as text: every name becomes the same words wherever it stands.
//!
//! A conversation's own answers are the exception: they go back as the engine wrote them. Texts of the prompt at hand are
//! kept, so that a growing conversation writes only what is new.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use crate::clients::{Ask, Prompt};
use crate::engine::text::words;
use crate::load::body::Pieces;
use crate::num::mix;

/// Bytes per token: what simulated engines count by default, one word of [`words`].
const BYTES_PER_TOKEN: usize = 4;

/// A prompt as the list of its contents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outline {
    pieces: Vec<(u64, usize)>,
}

impl Prompt for Outline {
    fn push(&mut self, name: u64, tokens: usize) {
        self.pieces.push((name, tokens));
    }
}

impl Outline {
    /// Its length.
    pub(crate) fn tokens(&self) -> usize {
        self.pieces.iter().map(|(_, tokens)| tokens).sum()
    }

    /// Tokens of the contents that all of these begin with.
    pub(crate) fn common(all: &[Ask<Self>]) -> usize {
        let Some((first, others)) = all.split_first() else { return 0 };
        let shared = |at: usize| others.iter().all(|ask| ask.prompt.pieces.get(at) == first.prompt.pieces.get(at));
        first.prompt.pieces.iter().enumerate().take_while(|(at, _)| shared(*at)).map(|(_, (_, tokens))| tokens).sum()
    }
}

/// How contents become messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// the first content is the system message; what lies between two answers is one user message
    Talk,
    /// all is one user message: a trace knows no roles
    Whole,
}

/// Writes the requests of one client.
#[derive(Debug)]
pub(crate) struct Scribe {
    form: Form,
    /// by name, ready for a JSON string
    texts: HashMap<u64, Bytes>,
    /// names of `texts` that an engine wrote
    heard: HashSet<u64>,
}

impl Scribe {
    pub(crate) fn new(form: Form) -> Self {
        Self { form, texts: HashMap::new(), heard: HashSet::new() }
    }

    /// Remembers an answer, JSON-escaped, under its name.
    pub(crate) fn hear(&mut self, name: u64, answer: String) {
        self.texts.insert(name, answer.into());
        self.heard.insert(name);
    }

    /// The bodies of requests that are asked together; what none of them mentions is forgotten.
    pub(crate) fn write(&mut self, asks: &[Ask<Outline>], model: &str) -> Vec<Pieces> {
        let named: HashSet<u64> = asks.iter().flat_map(|ask| ask.prompt.pieces.iter().map(|(name, _)| *name)).collect();
        self.texts.retain(|name, _| named.contains(name));
        self.heard.retain(|name| named.contains(name));
        asks.iter().map(|ask| self.body(ask, model)).collect()
    }

    fn body(&mut self, ask: &Ask<Outline>, model: &str) -> Pieces {
        let key = if ask.named { format!(r#""prompt_cache_key":"{:x}","#, ask.session) } else { String::new() };
        let mut pieces = vec![Bytes::from(format!(
            r#"{{"model":"{model}",{key}"max_tokens":{},"stream":true,"stream_options":{{"include_usage":true}},"messages":["#,
            ask.answer.1.max(1)
        ))];
        let mut role = "";
        for (at, &(name, tokens)) in ask.prompt.pieces.iter().enumerate() {
            let next = match self.form {
                Form::Talk if at == 0 => "system",
                Form::Talk if self.heard.contains(&name) => "assistant",
                _ => "user",
            };
            if next != role {
                let close = if role.is_empty() { "" } else { r#""},"# };
                pieces.push(format!(r#"{close}{{"role":"{next}","content":""#).into());
                role = next;
            }
            pieces.push(self.text(name, tokens));
        }
        pieces.push(Bytes::from_static(if role.is_empty() { b"]}" } else { br#""}]}"# }));
        Pieces::new(pieces.into())
    }

    fn text(&mut self, name: u64, tokens: usize) -> Bytes {
        let bytes = tokens * BYTES_PER_TOKEN;
        let whole = self.heard.contains(&name);
        if let Some(text) = self.texts.get(&name).filter(|text| whole || text.len() == bytes) {
            return text.clone();
        }
        let text = text(name, tokens);
        self.texts.insert(name, text.clone());
        text
    }
}

/// The words a name stands for: equal names give equal text, and less of it is the start of more.
fn text(name: u64, tokens: usize) -> Bytes {
    // mixed, because the words of neighbouring seeds are the same words one place on
    words(mix(name), tokens * BYTES_PER_TOKEN).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn ask(pieces: &[(u64, usize)]) -> Ask<Outline> {
        Ask { session: 0xab, named: true, prompt: Outline { pieces: pieces.to_vec() }, answer: (99, 7) }
    }

    fn json(scribe: &mut Scribe, pieces: &[(u64, usize)]) -> Value {
        serde_json::from_slice(&scribe.write(&[ask(pieces)], "m")[0].whole()).unwrap()
    }

    proptest! {
        #[test]
        fn equal_names_give_equal_text_and_others_differ(a in any::<u64>(), b in any::<u64>(), less in 8usize..500, more in 0usize..500) {
            let long = text(a, less + more);
            prop_assert_eq!(long.len(), (less + more) * BYTES_PER_TOKEN);
            prop_assert_eq!(&long[..less * BYTES_PER_TOKEN], &text(a, less)[..]);
            prop_assert!(a == b || text(a, less) != text(b, less));
        }

        #[test]
        fn a_body_holds_the_prompts_tokens(sizes in prop::collection::vec(1usize..300, 1..12)) {
            let pieces: Vec<(u64, usize)> = sizes.iter().enumerate().map(|(at, size)| (at as u64 + 7, *size)).collect();
            let json = json(&mut Scribe::new(Form::Whole), &pieces);
            let content = json["messages"][0]["content"].as_str().unwrap();
            prop_assert_eq!(content.len(), sizes.iter().sum::<usize>() * BYTES_PER_TOKEN);
            prop_assert_eq!(json["messages"].as_array().unwrap().len(), 1);
        }
    }

    #[test]
    fn neighbouring_names_are_not_the_same_words_one_place_on() {
        assert!(!text(1, 100)[BYTES_PER_TOKEN..].starts_with(&text(2, 50)));
    }

    #[test]
    fn a_conversation_alternates_and_repeats_the_engines_words() {
        let mut scribe = Scribe::new(Form::Talk);
        let first = json(&mut scribe, &[(1, 5), (2, 3)]);
        assert_eq!(first["messages"][0]["role"], "system");
        assert_eq!((&first["max_tokens"], &first["prompt_cache_key"]), (&Value::from(7), &Value::from("ab")));
        scribe.hear(3, r#"said \"so\""#.to_owned());
        let second = json(&mut scribe, &[(1, 5), (2, 3), (3, 400), (4, 2)]);
        let messages = second["messages"].as_array().unwrap();
        assert_eq!(
            messages.iter().map(|m| m["role"].as_str().unwrap()).collect::<Vec<_>>(),
            ["system", "user", "assistant", "user"]
        );
        assert_eq!(messages[2]["content"], r#"said "so""#);
        assert_eq!(messages[..2], first["messages"].as_array().unwrap()[..]);
        json(&mut scribe, &[(9, 5)]);
        assert_eq!(scribe.texts.len(), 1, "what is not mentioned any more is forgotten");
    }

    #[test]
    fn what_is_common_is_counted_in_tokens() {
        let asks = [ask(&[(1, 10), (2, 100), (3, 5)]), ask(&[(1, 10), (2, 100), (4, 5)]), ask(&[(1, 10), (2, 100)])];
        assert_eq!(Outline::common(&asks), 110);
        assert_eq!(Outline::common(&[]), 0);
        assert_eq!(asks[0].prompt.tokens(), 115);
    }
}
