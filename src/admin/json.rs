//! JSON as the admin API writes it: objects, members in the order of writing.

use std::fmt::{Display, Write};

/// Writes the members of one object.
pub(super) struct Object<'a> {
    out: &'a mut String,
    is_empty: bool,
}

/// A document that is one object.
pub(super) fn document(members: impl FnOnce(&mut Object<'_>)) -> String {
    let mut out = String::with_capacity(4096);
    object(&mut out, members);
    out.push('\n');
    out
}

fn object(out: &mut String, members: impl FnOnce(&mut Object<'_>)) {
    out.push('{');
    members(&mut Object { out, is_empty: true });
    out.push('}');
}

impl Object<'_> {
    fn name(&mut self, name: &str) -> &mut String {
        if !std::mem::replace(&mut self.is_empty, false) {
            self.out.push(',');
        }
        quote(self.out, name);
        self.out.push(':');
        self.out
    }

    /// A text, or null.
    pub(super) fn text<'t>(&mut self, name: &str, text: impl Into<Option<&'t str>>) {
        let text = text.into();
        let out = self.name(name);
        match text {
            Some(text) => quote(out, text),
            None => out.push_str("null"),
        }
    }

    /// A whole number, or true or false.
    pub(super) fn plain(&mut self, name: &str, value: impl Display) {
        // writing to a String cannot fail
        let _infallible = write!(self.name(name), "{value}");
    }

    /// A number to the fourth digit after the point, or null.
    pub(super) fn number(&mut self, name: &str, value: impl Into<Option<f64>>) {
        match value.into().filter(|v| v.is_finite()) {
            // adding zero turns minus zero into zero
            Some(value) => self.plain(name, (value * 1e4).round() / 1e4 + 0.0),
            None => self.plain(name, "null"),
        }
    }

    /// An object, or null.
    pub(super) fn object<T>(&mut self, name: &str, of: Option<T>, members: impl FnOnce(&mut Object<'_>, T)) {
        let out = self.name(name);
        match of {
            Some(of) => object(out, |inner| members(inner, of)),
            None => out.push_str("null"),
        }
    }

    /// A list of numbers to the fourth digit after the point, or nulls.
    pub(super) fn numbers(&mut self, name: &str, values: impl IntoIterator<Item = Option<f64>>) {
        let out = self.name(name);
        out.push('[');
        for (n, value) in values.into_iter().enumerate() {
            if n > 0 {
                out.push(',');
            }
            // writing to a String cannot fail
            let _infallible = match value.filter(|v| v.is_finite()) {
                Some(value) => write!(out, "{}", (value * 1e4).round() / 1e4 + 0.0),
                None => write!(out, "null"),
            };
        }
        out.push(']');
    }

    /// A list of texts.
    pub(super) fn texts(&mut self, name: &str, texts: &[String]) {
        let out = self.name(name);
        out.push('[');
        for (n, text) in texts.iter().enumerate() {
            if n > 0 {
                out.push(',');
            }
            quote(out, text);
        }
        out.push(']');
    }

    /// A list of objects.
    pub(super) fn list<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        members: impl Fn(&mut Object<'_>, T),
    ) {
        let out = self.name(name);
        out.push('[');
        for (n, item) in items.into_iter().enumerate() {
            if n > 0 {
                out.push(',');
            }
            object(out, |inner| members(inner, item));
        }
        out.push(']');
    }
}

fn quote(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                // writing to a String cannot fail
                let _infallible = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_json() {
        let text = document(|o| {
            o.text("a\"\n", "b\\\u{1}ü");
            o.text("none", None);
            o.plain("n", 7);
            o.number("x", -0.0);
            o.number("y", 1_234.567_891);
            o.number("inf", f64::INFINITY);
            o.object("inner", Some(1), |o, n| o.plain("n", n));
            o.object("no", None::<u8>, |o, n| o.plain("n", n));
            o.list("all", [1, 2], |o, n| o.plain("n", n));
            o.list("nobody", [0; 0], |o, n: i32| o.plain("n", n));
            o.numbers("line", [Some(1.5), None, Some(f64::NAN), Some(-0.0)]);
        });
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let want = serde_json::json!({
            "a\"\n": "b\\\u{1}ü", "none": null, "n": 7, "x": 0, "y": 1_234.567_9, "inf": null,
            "inner": { "n": 1 }, "no": null, "all": [{ "n": 1 }, { "n": 2 }], "nobody": [], "line": [1.5, null, null, 0],
        });
        assert_eq!(value, want);
    }
}
