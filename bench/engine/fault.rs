//! How an engine can misbehave, and the two ways to say so: a flag at the start, a request at run time.

use serde_json::Value;

/// One fault at a time; the last one said wins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    None,
    /// as a dead process: the listener is closed and every connection is dropped
    Refuse,
    /// everything answers, nothing is generated
    Freeze,
    /// every inference request is answered 503 at once
    Unavailable {
        retry_after: Option<u64>,
    },
    /// streams are torn down with a TCP reset after this many events
    Reset {
        after: usize,
    },
    /// streams end with an error event and `[DONE]` after this many events, as when vLLM's core dies
    Error {
        after: usize,
    },
    /// prefill and decode take this many times as long
    Slow {
        factor: f64,
    },
}

/// A fault with its circumstances, as `POST /fault` says it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Order {
    pub(crate) fault: Fault,
    /// back to `none` after this long
    pub(crate) for_ms: Option<u64>,
    /// requests and cache are lost as the fault begins
    pub(crate) restart: bool,
}

const KINDS: &str = "none, refuse, freeze, 503, reset, error, slow";
const EVENTS_BEFORE_BREAK: u64 = 5;
const SLOW_FACTOR: f64 = 2.0;

fn build(kind: &str, number: Option<f64>) -> Result<Fault, String> {
    let after = crate::num::size(number.unwrap_or(EVENTS_BEFORE_BREAK as f64));
    match kind {
        "none" => Ok(Fault::None),
        "refuse" => Ok(Fault::Refuse),
        "freeze" => Ok(Fault::Freeze),
        "503" => Ok(Fault::Unavailable { retry_after: number.map(crate::num::whole) }),
        "reset" => Ok(Fault::Reset { after }),
        "error" => Ok(Fault::Error { after }),
        "slow" => match number.unwrap_or(SLOW_FACTOR) {
            factor if factor.is_finite() && factor > 0.0 => Ok(Fault::Slow { factor }),
            factor => Err(format!("slow factor {factor}: must be above 0")),
        },
        other => Err(format!("unknown fault {other:?}: one of {KINDS}")),
    }
}

/// `[NAME=]KIND[:NUMBER]`, for example `freeze`, `sim-1=slow:3`, `503:2`. No name means every engine.
pub(crate) fn from_flag(flag: &str) -> Result<(Option<String>, Fault), String> {
    let (name, rest) = match flag.split_once('=') {
        Some((name, rest)) => (Some(name.to_owned()), rest),
        None => (None, flag),
    };
    let (kind, number) = match rest.split_once(':') {
        Some((kind, number)) => {
            (kind, Some(number.parse::<f64>().map_err(|error| format!("fault {flag:?}: {number:?}: {error}"))?))
        }
        None => (rest, None),
    };
    Ok((name, build(kind, number)?))
}

/// The body of `POST /fault`: `{"kind":"slow","factor":3}`, `{"kind":"503","retry_after":1}`,
/// `{"kind":"reset","after":5}`, `{"kind":"refuse","for_ms":2000,"restart":true}`.
pub(crate) fn from_json(body: &[u8]) -> Result<Order, String> {
    let json: Value = serde_json::from_slice(body).map_err(|error| format!("body is not JSON: {error}"))?;
    let kind = match json.get("kind") {
        Some(Value::String(kind)) => kind.clone(),
        Some(Value::Number(kind)) => kind.to_string(),
        _ => return Err(format!("kind is missing: one of {KINDS}")),
    };
    let number = ["factor", "retry_after", "after"].iter().find_map(|key| json.get(key).and_then(Value::as_f64));
    Ok(Order {
        fault: build(&kind, number)?,
        for_ms: json.get("for_ms").and_then(Value::as_u64),
        restart: json.get("restart").and_then(Value::as_bool).unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags() {
        assert_eq!(from_flag("freeze"), Ok((None, Fault::Freeze)));
        assert_eq!(from_flag("sim-1=slow:3"), Ok((Some("sim-1".to_owned()), Fault::Slow { factor: 3.0 })));
        assert_eq!(from_flag("503:2"), Ok((None, Fault::Unavailable { retry_after: Some(2) })));
        assert_eq!(from_flag("reset"), Ok((None, Fault::Reset { after: 5 })));
        assert!(from_flag("melt").is_err());
        assert!(from_flag("slow:0").is_err());
    }

    #[test]
    fn bodies() {
        let order = from_json(br#"{"kind":"refuse","for_ms":2000,"restart":true}"#).unwrap();
        assert_eq!(order, Order { fault: Fault::Refuse, for_ms: Some(2000), restart: true });
        assert_eq!(from_json(br#"{"kind":503}"#).unwrap().fault, Fault::Unavailable { retry_after: None });
        assert!(from_json(b"{}").is_err());
    }
}
