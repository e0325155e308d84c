//! One JSON line per request, under the log target `access`.
//!
//! It names the replica by its configured name and carries sizes, times and token counts; no path of an unknown
//! endpoint, no prompt text, no key.

use super::metrics::Outcome;
use crate::policy::lane::Gate;
use crate::policy::select::Decision;
use std::time::Duration;

/// What the line says besides the outcome.
#[derive(Clone, Copy, Debug)]
pub struct Access<'a> {
    /// The request's id.
    pub id: &'a str,
    /// When it ended, in milliseconds since 1970.
    pub at_ms: u64,
    /// How it ended.
    pub outcome: &'a Outcome,
    /// Bytes of the request's body, where it was read.
    pub body_bytes: u64,
    /// Full blocks of its prompt.
    pub blocks: usize,
    /// Blocks of it that the last replica tried held.
    pub overlap: u32,
    /// The last replica tried.
    pub replica: Option<&'a str>,
    /// Attempts made.
    pub attempts: u32,
    /// The name of the client's key, where keys are asked for.
    pub key: Option<&'a str>,
    /// The choice.
    pub decision: Option<&'a Decision>,
    /// How it ended in one word: `ok`, `client_left`, the code of ramjet's own error, or how the last attempt failed.
    pub end: &'a str,
}

impl Access<'_> {
    /// The line.
    pub fn line(&self) -> String {
        let o = self.outcome;
        let mut out = String::with_capacity(384);
        number(&mut out, "{\"at\":", self.at_ms / 1000);
        out.push('.');
        out.extend([100, 10, 1].map(|unit| char::from(b'0' + u8::try_from(self.at_ms / unit % 10).unwrap_or(0))));
        word(&mut out, ",\"id\":", self.id);
        word(&mut out, ",\"endpoint\":", o.endpoint.label());
        number(&mut out, ",\"status\":", o.status.into());
        out.push_str(if o.stream { ",\"stream\":true" } else { ",\"stream\":false" });
        word(&mut out, ",\"end\":", self.end);
        number(&mut out, ",\"bytes\":", self.body_bytes);
        number(&mut out, ",\"blocks\":", self.blocks as u64);
        number(&mut out, ",\"overlap\":", self.overlap.into());
        word(&mut out, ",\"reason\":", self.decision.map(|d| d.reason.label()));
        word(&mut out, ",\"replica\":", self.replica);
        number(&mut out, ",\"attempts\":", self.attempts.into());
        number(&mut out, ",\"ms\":", millis(o.duration));
        if let Some(gate) = self.decision.map(|d| d.gate).filter(|gate| *gate != Gate::Open) {
            word(&mut out, ",\"lane\":", gate.label());
        }
        if self.key.is_some() {
            word(&mut out, ",\"key\":", self.key);
        }
        for (name, value) in [
            (",\"ttft_ms\":", o.ttft.map(millis)),
            (",\"prompt\":", o.usage.prompt),
            (",\"cached\":", o.usage.cached),
            (",\"completion\":", o.usage.completion),
        ] {
            if let Some(value) = value {
                number(&mut out, name, value);
            }
        }
        out.push('}');
        out
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// Writes a member that is a number. (Every request leaves a line, and formatting takes several times as long.)
fn number(out: &mut String, name: &str, mut value: u64) {
    out.push_str(name);
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] += u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend(digits[at..].iter().map(|digit| char::from(*digit)));
}

/// Writes a member that is a configured or closed word; names are escaped as far as JSON needs it.
fn word<'a>(out: &mut String, name: &str, word: impl Into<Option<&'a str>>) {
    out.push_str(name);
    let Some(word) = word.into() else { return out.push_str("null") };
    out.push('"');
    if word.bytes().any(|c| matches!(c, b'"' | b'\\' | ..b' ')) {
        for c in word.chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                c if c < ' ' => out.push('?'),
                c => out.push(c),
            }
        }
    } else {
        out.push_str(word);
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::answer::Usage;
    use crate::api::endpoint::Endpoint;

    #[test]
    fn the_line_is_json_and_leaves_out_what_is_unknown() {
        let outcome = Outcome {
            endpoint: Endpoint::Chat,
            status: 200,
            stream: true,
            duration: Duration::from_millis(1500),
            ttft: None,
            usage: Usage { prompt: Some(9), ..Usage::default() },
            answered: true,
        };
        let line = Access {
            id: "abc",
            at_ms: 1_000_000_000_007,
            outcome: &outcome,
            body_bytes: 10,
            blocks: 2,
            overlap: 1,
            replica: Some("gpu \"a\""),
            attempts: 1,
            key: Some("team"),
            decision: None,
            end: "ok",
        }
        .line();
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["replica"], "gpu \"a\"");
        assert_eq!((&value["bytes"], &value["overlap"], &value["status"]), (&10.into(), &1.into(), &200.into()));
        assert!(value["reason"].is_null() && value["stream"] == true && value["id"] == "abc");
        assert_eq!(value["ms"], 1500);
        assert!(line.starts_with("{\"at\":1000000000.007,\"id\""), "{line}");
        assert_eq!(value["key"], "team");
        assert_eq!(value["prompt"], 9);
        assert!(value.get("cached").is_none() && value.get("ttft_ms").is_none());
    }

    #[test]
    fn numbers_are_written_as_they_are() {
        for value in [0, 7, 10, 99, 100, 1_234_567_890, u64::MAX - 1, u64::MAX] {
            let mut out = String::new();
            number(&mut out, "n:", value);
            assert_eq!(out, format!("n:{value}"));
        }
    }
}
