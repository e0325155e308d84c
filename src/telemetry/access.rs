//! One JSON line per request, under the log target `access`.
//!
//! It names the replica by its configured name and carries sizes, times and token counts; no path of an unknown
//! endpoint, no prompt text, no key.

use super::metrics::Outcome;
use crate::policy::lane::Gate;
use crate::policy::select::{Decision, Reason};
use std::fmt::Write;
use std::time::Duration;

/// What the line says besides the outcome.
#[derive(Clone, Copy, Debug)]
pub struct Access<'a> {
    /// The request's id.
    pub id: &'a str,
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
    /// How it ended in one word: `ok`, `client_left`, or the code of the error.
    pub end: &'a str,
}

impl Access<'_> {
    /// The line.
    pub fn line(&self) -> String {
        let o = self.outcome;
        let mut out = String::with_capacity(384);
        // writing to a String cannot fail
        let _infallible = write!(
            out,
            r#"{{"id":"{}","endpoint":"{}","status":{},"stream":{},"end":"{}","bytes":{},"blocks":{},"overlap":{},"reason":{},"replica":{},"attempts":{},"ms":{}"#,
            self.id,
            o.endpoint.label(),
            o.status,
            o.stream,
            self.end,
            self.body_bytes,
            self.blocks,
            self.overlap,
            quoted(self.decision.map(|d| d.reason).map(Reason::label)),
            quoted(self.replica),
            self.attempts,
            millis(o.duration),
        );
        if let Some(gate) = self.decision.map(|d| d.gate).filter(|gate| *gate != Gate::Open) {
            let _infallible = write!(out, r#","lane":"{}""#, gate.label());
        }
        if self.key.is_some() {
            let _infallible = write!(out, r#","key":{}"#, quoted(self.key));
        }
        for (name, value) in [
            ("ttft_ms", o.ttft.map(millis)),
            ("prompt", o.usage.prompt),
            ("cached", o.usage.cached),
            ("completion", o.usage.completion),
        ] {
            if let Some(value) = value {
                let _infallible = write!(out, r#","{name}":{value}"#);
            }
        }
        out.push('}');
        out
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// A configured or closed word as a JSON string; names are escaped as far as JSON needs it.
fn quoted(word: Option<&str>) -> String {
    match word {
        None => "null".to_owned(),
        Some(word) => {
            let mut out = String::from("\"");
            for c in word.chars() {
                match c {
                    '"' | '\\' => out.extend(['\\', c]),
                    c if c < ' ' => out.push('?'),
                    c => out.push(c),
                }
            }
            out.push('"');
            out
        }
    }
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
        assert_eq!(value["ms"], 1500);
        assert_eq!(value["key"], "team");
        assert_eq!(value["prompt"], 9);
        assert!(value.get("cached").is_none() && value.get("ttft_ms").is_none());
    }
}
