//! A prompt: written otherwise it has the same fingerprints, with more messages it has the same ones and more, and never
//! more than its bytes allow.
//!
//! Input: a first line `ENDPOINT BLOCK_BYTES MAX_PREFIX_BYTES`, then the body.

use super::tree::{Style, Tree};
use ramjet::api::canonical::{anchor, anthropic, chat, completion, generate, responses};
use ramjet::api::endpoint::Endpoint;
use ramjet::api::request::read;
use ramjet::prefix::fingerprint::{Chain, Fingerprints};

/// Values nested deeper are hashed as they are written.
const MAX_DEPTH: usize = 12;
const SECRET: u64 = 7;

/// How a prompt is fingerprinted.
#[derive(Clone, Copy)]
struct Shape {
    endpoint: Endpoint,
    block: usize,
    most: usize,
}

pub(crate) fn check(data: &[u8]) {
    let (head, body) = data.iter().position(|c| *c == b'\n').map_or((&b""[..], data), |n| (&data[..n], &data[n + 1..]));
    let head = String::from_utf8_lossy(head);
    let mut words = head.split_ascii_whitespace();
    let endpoint = words.next().and_then(|word| Endpoint::ALL.into_iter().find(|e| e.label() == word));
    let mut number = |default| words.next().and_then(|word| word.parse::<u16>().ok()).map_or(default, usize::from);
    let shape = Shape { endpoint: endpoint.unwrap_or(Endpoint::Chat), block: number(64), most: number(4096) };
    let prints = bounded(shape, body);
    let Some(tree @ Tree::Map(_)) = Tree::of(body) else { return };
    if tree.has_duplicates() || tree.depth() > MAX_DEPTH {
        return;
    }
    if let Some(prints) = &prints {
        same(shape, body, prints, tree.write(Style::Compact), "compact");
        for style in [Style::Spaced, Style::Escaped, Style::Reversed] {
            same(shape, body, prints, tree.write(style), &format!("{style:?}"));
        }
        same(shape, body, prints, sampled(&tree).write(Style::Compact), "sampling");
        same(shape, body, prints, in_parts(shape.endpoint, &tree).write(Style::Compact), "parts");
        longer(shape, &tree, prints);
    }
}

fn prints(shape: Shape, body: &[u8]) -> Option<Fingerprints> {
    let request = read(body).ok()?;
    let chain = Chain::new(SECRET, shape.block, shape.most);
    let prints = match shape.endpoint {
        Endpoint::Completions => completion(&request, chain),
        Endpoint::Responses => responses(&request, chain),
        Endpoint::Messages => anthropic(&request, chain),
        Endpoint::Generate => generate(&request, chain),
        _ => chat(&request, chain),
    };
    prints.ok()
}

fn bounded(shape: Shape, body: &[u8]) -> Option<Fingerprints> {
    let prints = prints(shape, body)?;
    let blocks = prints.prints.len();
    let block = shape.block.max(1);
    assert!(blocks * block <= shape.most, "beyond the bound");
    assert!((blocks * block) as u64 <= prints.bytes, "more blocks than bytes");
    let full = prints.bytes / block as u64 >= (shape.most / block) as u64;
    assert_eq!(prints.is_cut, full, "{} bytes", prints.bytes);
    for place in [prints.ends.previous, prints.ends.own].into_iter().flatten() {
        assert!(place.blocks as usize <= blocks);
    }
    Some(prints)
}

/// The same prompt in other words.
fn same(shape: Shape, body: &[u8], want: &Fingerprints, other: String, how: &str) {
    let got = bounded(shape, other.as_bytes());
    assert_eq!(got.as_ref(), Some(want), "{how}: {other}");
    let anchor = |body: &[u8]| anchor(shape.endpoint, &read(body).unwrap(), SECRET);
    assert_eq!(anchor(other.as_bytes()), anchor(body), "anchor, {how}: {other}");
}

fn sampled(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    let Tree::Map(members) = &mut tree else { return tree };
    let more =
        [("temperature", "0.5"), ("top_p", "1"), ("seed", "3"), ("max_tokens", "9"), ("stream", "true"), ("n", "1")];
    members.retain(|(key, _)| !more.iter().any(|(name, _)| key == name));
    for (at, (name, value)) in more.into_iter().enumerate() {
        let place = (at * 3).min(members.len());
        members.insert(place, (name.to_owned(), Tree::Atom(value.to_owned())));
    }
    tree
}

/// Every content that is a string as one text part.
fn in_parts(endpoint: Endpoint, tree: &Tree) -> Tree {
    let part = |text: &Tree| {
        let word = |word: &str| Tree::Text(word.to_owned());
        Tree::List(vec![Tree::Map(vec![("type".to_owned(), word("text")), ("text".to_owned(), text.clone())])])
    };
    let mut tree = tree.clone();
    let Tree::Map(members) = &mut tree else { return tree };
    for (key, value) in members {
        match (&**key, endpoint) {
            ("system", Endpoint::Messages) if value.text().is_some() => *value = part(value),
            ("messages", Endpoint::Chat | Endpoint::Messages) | ("input", Endpoint::Responses) => {
                let Tree::List(list) = value else { continue };
                for item in list {
                    let Tree::Map(item) = item else { continue };
                    let content = item.iter_mut().find(|(key, value)| key == "content" && value.text().is_some());
                    if let Some((_, content)) = content {
                        *content = part(content);
                    }
                }
            }
            _ => {}
        }
    }
    tree
}

/// One more message, an answer, changes nothing that was there; and the turn that it answers ends where it ended.
fn longer(shape: Shape, tree: &Tree, before: &Fingerprints) {
    let name = match shape.endpoint {
        Endpoint::Chat | Endpoint::Messages => "messages",
        Endpoint::Responses => "input",
        _ => return,
    };
    let mut tree = tree.clone();
    let Tree::Map(members) = &mut tree else { return };
    let Some((_, Tree::List(list))) = members.iter_mut().find(|(key, _)| key == name) else { return };
    let was_answer = list.last().is_some_and(|message| {
        let word = |name: &str| message.get(name).and_then(Tree::text);
        word("role") == Some("assistant")
            || word("type").is_some_and(|kind| kind.ends_with("_call") || kind == "reasoning")
    });
    let message = [("role", "assistant"), ("content", "a longer answer than the last block has room for, perhaps")];
    list.push(Tree::Map(message.map(|(key, value)| (key.to_owned(), Tree::Text(value.to_owned()))).to_vec()));
    let after = prints(shape, tree.write(Style::Compact).as_bytes()).unwrap();
    assert!(after.prints.starts_with(&before.prints), "the beginning changed");
    assert!(after.bytes > before.bytes || before.is_cut);
    if !was_answer && !before.is_cut {
        assert_eq!(after.ends.previous, before.ends.own, "the turn before ends elsewhere");
    }
}
