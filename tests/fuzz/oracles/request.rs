//! A request: what is read of a body is what serde_json reads, what is edited is what was meant and no more, and what is
//! decompressed has its bound.
//!
//! Input: a first line `METHOD PATH | Content-Encoding | Content-Type`, then the body.

use super::dice::Dice;
use super::tree::{Style, Tree};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use ramjet::api::compat::{Compat, EFFORTS, suit};
use ramjet::api::edit::LastMember;
use ramjet::api::encoding::{Coding, DENSEST, Unread};
use ramjet::api::endpoint::{Endpoint, kept};
use ramjet::api::model::{Aliases, Form};
use ramjet::api::request::{RENDERED, Request, SEPARATING, read};
use std::io::Write;

const RULES: Compat = Compat {
    strip_max_tokens_over: Some(100),
    flatten_text_parts: true,
    drop_unknown_reasoning_effort: true,
    ask_usage: false,
};
const LIMIT: usize = 1 << 16;
/// What an alias stands for: longer than it, with what must be escaped.
const MODEL: &str = "org/\"m\"\\\n";

/// A byte is written in at most so many.
const LONGEST_ESCAPE: usize = 6;

pub(crate) fn check(data: &[u8]) {
    let (head, body) = data.iter().position(|c| *c == b'\n').map_or((&b""[..], data), |n| (&data[..n], &data[n + 1..]));
    let head = String::from_utf8_lossy(head);
    let mut hints = head.split('|').map(str::trim);
    let (method, path) = hints.next().unwrap_or_default().split_once(' ').unwrap_or_default();
    let endpoint = Endpoint::of(method, path);
    if let Some(id) = kept(method, path) {
        assert!(!id.is_empty() && path.contains(id) && !id.contains('/'), "{id:?} in {path:?}");
    }
    let plain =
        Coding::of(hints.next().map(str::as_bytes).into_iter()).ok().flatten().map(|coding| decoded(coding, body));
    // compressing takes longer than all the rest
    if Dice::of(data).below(16) == 0 {
        coded(body);
    }
    let body = Bytes::from(plain.flatten().unwrap_or_else(|| body.to_vec()));
    multipart(hints.next().unwrap_or_default(), &body);
    let tree = Tree::of(&body);
    match (read(&body), &tree) {
        (Ok(request), Some(tree)) => agrees(&request, tree),
        (Ok(request), None) => drop(request),
        (Err(_), Some(Tree::Map(_))) => panic!("an object is refused"),
        (Err(e), _) => return assert!(e.at <= body.len()),
    }
    edits(endpoint, &body, tree.as_ref());
    last_member(&body, tree.as_ref());
    renamed(&body, tree.as_ref());
}

// === encodings ===

/// What is in a body that says it is compressed.
fn decoded(coding: Coding, body: &[u8]) -> Option<Vec<u8>> {
    let out = coding.decode(body, LIMIT).ok()?;
    assert!(out.len() <= LIMIT && out.len() <= (body.len() * DENSEST).max(1 << 20));
    Some(out)
}

/// Any bytes come back from every coding, and not when they are one more than allowed.
fn coded(plain: &[u8]) {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(plain).unwrap();
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
    zlib.write_all(plain).unwrap();
    let all = [
        (Coding::Gzip, gzip.finish().unwrap()),
        (Coding::Deflate, zlib.finish().unwrap()),
        (Coding::Zstd, zstd::encode_all(plain, 1).unwrap()),
    ];
    for (coding, body) in all {
        assert_eq!(coding.decode(&body, plain.len()).as_deref(), Ok(plain), "{coding:?}");
        if let Some(less) = plain.len().checked_sub(1) {
            assert_eq!(coding.decode(&body, less), Err(Unread::TooLarge), "{coding:?}");
        }
    }
}

// === reading ===

/// The lazy reading and the tree say the same, where every member stands once.
fn agrees(request: &Request<'_>, tree: &Tree) {
    let Some(members) = tree.members() else { panic!("what is no object is taken for one") };
    let limits = members.iter().filter(|(key, _)| is_limit(key));
    assert_eq!(request.limits.len(), limits.count(), "limits");
    assert_eq!(request.efforts.len(), members.iter().filter(|(key, _)| key == "reasoning_effort").count(), "efforts");
    if tree.has_duplicates() {
        return;
    }
    let is = |name: &str, atom: &str| matches!(tree.get(name), Some(Tree::Atom(a)) if a == atom);
    assert_eq!((request.stream, request.is_stateless), (is("stream", "true"), is("store", "false")));
    for (name, read) in [
        ("model", request.model),
        ("previous_response_id", request.previous_response_id),
        ("input_file_id", request.input_file_id),
        ("prompt_cache_key", request.prompt_cache_key),
    ] {
        assert_eq!(read.map(|text| text.text()).as_deref(), tree.get(name).and_then(Tree::text), "{name}");
    }
    let own = &request.own;
    let own = [
        ("input", own.input),
        ("instructions", own.instructions),
        ("conversation", own.conversation),
        ("system", own.system),
        ("thinking", own.thinking),
        ("text", own.text),
        ("input_ids", own.input_ids),
        ("image_data", own.image_data),
    ];
    let rendered = RENDERED.into_iter().zip(request.rendered);
    for (name, read) in own.into_iter().chain(rendered).chain(SEPARATING.into_iter().zip(request.separating)) {
        assert_eq!(read.and_then(Tree::of).as_ref(), tree.get(name).filter(|value| !value.is_null()), "{name}");
    }
    assert_eq!(request.prompt.and_then(Tree::of).as_ref(), tree.get("prompt"), "prompt");
    messages(request, tree);
}

fn messages(request: &Request<'_>, tree: &Tree) {
    let list = tree.get("messages").and_then(Tree::list);
    let list = list.filter(|list| list.iter().all(|message| message.members().is_some()));
    let Some(list) = list else { return assert!(request.messages.is_none(), "messages that are none") };
    let read = request.messages.as_ref().unwrap_or_else(|| panic!("messages are not read"));
    assert_eq!(read.len(), list.len());
    for (read, message) in read.iter().zip(list) {
        assert_eq!(read.role.map(|role| role.text()).as_deref(), message.get("role").and_then(Tree::text));
        assert_eq!(read.content.and_then(Tree::of).as_ref(), message.get("content").filter(|c| !c.is_null()));
    }
}

// === edits ===

fn is_limit(key: &str) -> bool {
    matches!(key, "max_tokens" | "max_completion_tokens")
}

fn edits(endpoint: Endpoint, body: &Bytes, tree: Option<&Tree>) {
    let mut request = read(body).unwrap();
    let edited = suit(endpoint, body, &mut request, RULES);
    if let Some(edited) = &edited {
        assert!(edited.len() < body.len() && is_within(edited, body), "an edit adds something");
    }
    let Some(tree) = tree else { return };
    let after = Tree::of(edited.as_ref().unwrap_or(body)).unwrap_or_else(|| panic!("no JSON after an edit"));
    if !tree.has_duplicates() {
        let want = meant(endpoint, tree.clone());
        assert_eq!(after.write(Style::Compact), want.write(Style::Compact));
        // white space may stay behind; where nothing was meant, nothing is touched
        assert_eq!(edited.is_some(), want != *tree);
    }
    if let Some(edited) = edited {
        let mut again = read(&edited).unwrap();
        assert_eq!(suit(endpoint, &edited, &mut again, RULES), None, "something is left to edit");
    }
}

/// What the rules mean, on the tree.
fn meant(endpoint: Endpoint, mut tree: Tree) -> Tree {
    let Tree::Map(members) = &mut tree else { return tree };
    let is_chat = endpoint == Endpoint::Chat;
    members.retain(|(key, value)| match &**key {
        key if is_limit(key) && (is_chat || endpoint == Endpoint::Completions) => !is_over(value),
        "reasoning_effort" if is_chat => value.is_null() || value.text().is_some_and(|word| EFFORTS.contains(&word)),
        _ => true,
    });
    let messages = members.iter_mut().find(|(key, _)| key == "messages").map(|(_, messages)| messages);
    let Some(Tree::List(messages)) = messages.filter(|_| is_chat) else { return tree };
    if messages.iter().all(|message| message.members().is_some()) {
        for message in messages {
            let Tree::Map(message) = message else { continue };
            let Some((_, content)) = message.iter_mut().find(|(key, _)| key == "content") else { continue };
            if let Some([part]) = content.list().map(Vec::as_slice)
                && part.members().is_some_and(|members| members.len() == 2)
                && part.get("type").and_then(Tree::text) == Some("text")
                && let Some(text) = part.get("text").filter(|text| text.text().is_some())
            {
                *content = text.clone();
            }
        }
    }
    tree
}

fn is_over(value: &Tree) -> bool {
    let Tree::Atom(number) = value else { return false };
    number.parse::<f64>().is_ok_and(|n| n > 100.0 && n.fract() == 0.0)
}

/// Whether `part` is left of `whole` when bytes are taken out.
fn is_within(part: &[u8], whole: &[u8]) -> bool {
    let mut left = whole.iter();
    part.iter().all(|byte| left.any(|other| other == byte))
}

/// Whether only one stretch differs, and everything before and after it is the same.
fn differs_in_one_place(a: &[u8], b: &[u8], most: usize) -> bool {
    let before = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let after = a[before..].iter().rev().zip(b[before..].iter().rev()).take_while(|(a, b)| a == b).count();
    b.len() <= before + after + most
}

fn last_member(body: &Bytes, tree: Option<&Tree>) {
    let mut cleaned = body.clone();
    let found = LastMember::find(&mut cleaned, "n");
    if !matches!(tree, Some(Tree::Map(_))) {
        return;
    }
    let mut last = found.unwrap_or_else(|| panic!("an object without an end"));
    assert!(is_within(&cleaned, body));
    let once = last.write(cleaned.clone(), "\"n\":1");
    assert!(differs_in_one_place(&cleaned, &once, ",\"n\":1".len()));
    let twice = last.write(once, "\"n\":23");
    let mut want = tree.unwrap().clone();
    let Tree::Map(members) = &mut want else { return };
    members.retain(|(key, _)| key != "n");
    members.push(("n".to_owned(), Tree::Atom("23".to_owned())));
    assert_eq!(Tree::of(&twice), Some(want));
    assert_eq!(last.write(twice, ""), cleaned, "a trace is left");
}

fn renamed(body: &Bytes, tree: Option<&Tree>) {
    let name = Form::Json.model(body);
    if let Some(tree) = tree {
        assert_eq!(name.as_ref().map(|n| &*n.name), tree.get("model").and_then(Tree::text));
    }
    let Some(named) = name else { return };
    let aliases = Aliases::new([(named.name.clone(), MODEL.to_owned())]);
    let edited = aliases.resolve(Form::Json, body).unwrap();
    assert!(differs_in_one_place(body, &edited, MODEL.len() * LONGEST_ESCAPE));
    assert_eq!(Form::Json.model(&edited).unwrap().name, MODEL);
    if let Some(tree) = tree {
        let mut want = tree.clone();
        let Tree::Map(members) = &mut want else { return };
        let (_, model) = members.iter_mut().rev().find(|(key, _)| key == "model").unwrap();
        *model = Tree::Text(MODEL.to_owned());
        assert_eq!(Tree::of(&edited), Some(want));
    }
}

fn multipart(content_type: &str, body: &[u8]) {
    let Some(form @ Form::Multipart(_)) = Form::of(content_type) else { return };
    let Some(named) = form.model(body) else { return };
    let edited = named.replaced(body, "other");
    assert!(differs_in_one_place(body, &edited, "other".len()));
    assert!(form.model(&edited).is_some(), "the field is gone");
}
