//! The model that a body names, in JSON or in a form, and the body with another name in its place. Every byte outside
//! the name stays.

use super::json::Cursor;
use bytes::{Bytes, BytesMut};
use memchr::memmem;
use std::collections::HashMap;
use std::fmt::Write;
use std::ops::Range;

/// The member or field that holds the name.
const MODEL: &str = "model";

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form<'a> {
    /// A JSON object.
    Json,
    /// `multipart/form-data` with this boundary.
    Multipart(&'a str),
}

/// A name as it stands in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The decoded name.
    pub name: String,
    /// Where it stands: in JSON, what is between the quotes.
    span: Range<usize>,
    is_json: bool,
}

/// Other names for models.
#[derive(Clone, Debug, Default)]
pub struct Aliases(HashMap<String, String>);

impl<'a> Form<'a> {
    /// The form that a content type stands for, if it is one that names models.
    pub fn of(content_type: &'a str) -> Option<Self> {
        let (kind, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
        let kind = kind.trim();
        if kind.eq_ignore_ascii_case("application/json") {
            return Some(Form::Json);
        }
        let boundary = parameters.split(';').find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
        });
        boundary.filter(|b| kind.eq_ignore_ascii_case("multipart/form-data") && !b.is_empty()).map(Form::Multipart)
    }

    /// The model that `body` names; of several, the last, as engines read it.
    pub fn model(self, body: &[u8]) -> Option<Named> {
        match self {
            Form::Json => in_json(body),
            Form::Multipart(boundary) => in_multipart(body, boundary),
        }
    }
}

impl Named {
    /// The body with `name` in place of this one.
    pub fn replaced(&self, body: &[u8], name: &str) -> Bytes {
        let mut out = BytesMut::with_capacity(body.len() + name.len());
        out.extend_from_slice(&body[..self.span.start]);
        match self.is_json {
            true => out.extend_from_slice(escaped(name).as_bytes()),
            false => out.extend_from_slice(name.as_bytes()),
        }
        out.extend_from_slice(&body[self.span.end..]);
        out.freeze()
    }
}

impl Aliases {
    /// Pairs of an alias and the model that it stands for.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        Aliases(pairs.into_iter().collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All pairs, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(alias, model)| (alias.as_str(), model.as_str()))
    }

    /// The body with the model in place of its alias; `None` if it names none.
    pub fn resolve(&self, form: Form<'_>, body: &[u8]) -> Option<Bytes> {
        if self.is_empty() {
            return None;
        }
        let named = form.model(body)?;
        self.0.get(&named.name).map(|model| named.replaced(body, model))
    }
}

fn in_json(body: &[u8]) -> Option<Named> {
    let mut found = None;
    let read = Cursor::new(body).object(|key, value| {
        if key.is(MODEL) {
            found = value.clone().string().ok();
        }
        value.skip().map(drop)
    });
    let name = read.ok().and(found)?;
    let start = name.at + 1;
    Some(Named { name: name.text(), span: start..start + name.raw.len(), is_json: true })
}

fn in_multipart(body: &[u8], boundary: &str) -> Option<Named> {
    let line = format!("--{boundary}");
    let end = format!("\r\n{line}");
    let mut found = None;
    let mut at = memmem::find(body, line.as_bytes())? + line.len();
    while body.get(at..at + 2) == Some(b"\r\n") {
        let head_end = memmem::find(&body[at..], b"\r\n\r\n")? + at;
        let start = head_end + 4;
        let stop = memmem::find(&body[start..], end.as_bytes())? + start;
        if is_field(&body[at..head_end], MODEL) {
            let name = std::str::from_utf8(&body[start..stop]).ok()?.to_owned();
            found = Some(Named { name, span: start..stop, is_json: false });
        }
        at = stop + end.len();
    }
    found
}

/// Whether the head of a part says that it is the field `name` and no file.
fn is_field(head: &[u8], name: &str) -> bool {
    let Ok(head) = std::str::from_utf8(head) else { return false };
    let disposition = head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    disposition.is_some_and(|value| {
        let mut parameters = value.split(';').map(str::trim);
        let is_named = |p: &str| {
            p.split_once('=').is_some_and(|(k, v)| k.eq_ignore_ascii_case("name") && v.trim_matches('"') == name)
        };
        let is_form = parameters.next().is_some_and(|kind| kind.eq_ignore_ascii_case("form-data"));
        is_form && parameters.clone().any(is_named) && !parameters.any(|p| p.starts_with("filename"))
    })
}

/// `text` as it stands between the quotes of a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            // writing to a String cannot fail
            c if c < ' ' => drop(write!(out, "\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn aliases() -> Aliases {
        Aliases::new([("fast".to_owned(), "org/m \"1\"".to_owned())])
    }

    #[test]
    fn only_the_name_at_the_top_changes() {
        for (body, want) in [
            (r#"{"model":"fast","n":1.0}"#, Some(r#"{"model":"org/m \"1\"","n":1.0}"#)),
            (r#"{ "mod\u0065l" : "f\u0061st" }"#, Some(r#"{ "mod\u0065l" : "org/m \"1\"" }"#)),
            (r#"{"x":{"model":"fast"},"y":"\"model\":\"fast\""}"#, None),
            (r#"{"model":"faster"}"#, None),
            (r#"{"model":7}"#, None),
            (r#"{"model":"fast""#, None),
            (r#"{"model":"fast","model":"other"}"#, None),
            (r#"{"model":"other","model":"fast"}"#, Some(r#"{"model":"other","model":"org/m \"1\""}"#)),
        ] {
            let got = aliases().resolve(Form::Json, body.as_bytes());
            assert_eq!(got.as_deref(), want.map(str::as_bytes), "{body}");
        }
        assert_eq!(Aliases::default().resolve(Form::Json, br#"{"model":"fast"}"#), None);
    }

    #[test]
    fn the_field_of_a_form_is_found_between_files() {
        let part = |head: &str, value: &str| format!("--b\r\n{head}\r\n\r\n{value}\r\n");
        let file = part("Content-Disposition: form-data; name=\"file\"; filename=\"model\"", "model\r\n\r\nfast --b");
        let field = |name: &str| part(&format!("content-disposition: form-data; name={name}"), "fast");
        for (parts, found) in [
            (vec![field("\"model\""), file.clone()], true),
            (vec![file.clone(), field("model")], true),
            (vec![file.clone(), field("\"prompt\"")], false),
            (vec![part("content-disposition: form-data; name=\"model\"; filename=\"x\"", "fast")], false),
        ] {
            let body = parts.concat() + "--b--\r\n";
            let got = aliases().resolve(Form::Multipart("b"), body.as_bytes());
            let want = body.replace("\r\n\r\nfast\r\n", "\r\n\r\norg/m \"1\"\r\n");
            assert_eq!(got, found.then(|| want.into_bytes().into()), "{body}");
        }
        assert_eq!(Form::Multipart("b").model(b"--b\r\ncontent-disposition: form-data; name=model\r\n\r\nfast"), None);
    }

    #[test]
    fn the_content_type_tells_the_form() {
        for (content_type, want) in [
            ("application/json", Some(Form::Json)),
            ("Application/JSON; charset=utf-8", Some(Form::Json)),
            ("multipart/form-data; boundary=abc", Some(Form::Multipart("abc"))),
            ("multipart/form-data; charset=utf-8; boundary=\"a b\"", Some(Form::Multipart("a b"))),
            ("multipart/form-data", None),
            ("application/jsonl", None),
            ("text/plain; boundary=x", None),
        ] {
            assert_eq!(Form::of(content_type), want, "{content_type}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_odd(body in prop::collection::vec(any::<u8>(), 0..200), cut in 0..100_usize) {
            let _ = Form::Json.model(&body);
            let whole = b"--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nfast\r\n--b--\r\n";
            let cut = &whole[..cut.min(whole.len())];
            let _ = Form::Multipart("b").model(&[cut, &body].concat());
        }

        #[test]
        fn a_name_comes_back_as_it_was_put(name in "\\PC{0,20}|[\"\\\\\n]{1,5}") {
            let named = Form::Json.model(br#"{"model":"x"}"#).unwrap();
            let body = named.replaced(br#"{"model":"x"}"#, &name);
            prop_assert_eq!(Form::Json.model(&body).unwrap().name, name.clone());
            let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
            prop_assert_eq!(value["model"].as_str().unwrap(), name);
        }
    }
}
