//! Requests on their own clock, whatever the answers take: questions about documents that nobody has asked about before,
//! and recorded traces in Mooncake's format (JSON lines with `timestamp` in ms, `input_length`, `output_length` and
//! `hash_ids`, one per 512 tokens).
//!
//! A trace names no sessions. For measuring, a request belongs to the session of the one whose prompt covers at least
//! half of its own.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::{Ask, Clients, Prompt, Purpose};
use crate::num::{Rng, size, to_size};

/// Tokens of a block of a trace.
const TRACE_BLOCK: usize = 512;

/// Questions with documents, a Poisson process.
#[derive(Debug)]
pub(crate) struct Rag {
    seed: u64,
    per_s: f64,
    until: f64,
}

impl Rag {
    pub(crate) fn new(per_s: f64, until: f64, seed: u64) -> Self {
        Self { seed, per_s, until }
    }
}

impl<P: Prompt> Clients<P> for Rag {
    fn start(&self) -> Vec<(f64, usize)> {
        let mut rng = Rng::of(&[self.seed, Purpose::Start as u64]);
        let mut now = 0.0;
        let times = std::iter::from_fn(|| {
            now -= (1.0 - rng.unit()).ln() / self.per_s * 1000.0;
            (now < self.until).then_some(now)
        });
        times.enumerate().map(|(id, at)| (at, id)).collect()
    }

    fn wake(&mut self, id: usize, out: &mut Vec<Ask<P>>) {
        let mut rng = Rng::of(&[self.seed, Purpose::Turn as u64, id as u64]);
        let mut prompt = P::default();
        prompt.push(Rng::of(&[self.seed, Purpose::Shared as u64, rng.next() % 3]).next(), 1500);
        prompt.push(rng.next(), size(rng.between(4e3, 16e3)));
        let answer = (rng.next(), size(rng.between(100.0, 400.0)));
        out.push(Ask { session: id as u64, named: false, prompt, answer });
    }

    fn answered(&mut self, _: usize, _: bool) -> Option<f64> {
        None
    }
}

#[derive(Debug, Clone)]
struct Line {
    timestamp: f64,
    input_length: usize,
    output_length: usize,
    hash_ids: Vec<u64>,
}

impl Line {
    fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let number = |key: &str| value[key].as_u64().ok_or_else(|| format!("no number {key}"));
        let ids = value["hash_ids"].as_array().ok_or("no list hash_ids")?;
        Ok(Self {
            timestamp: value["timestamp"].as_f64().ok_or("no number timestamp")?,
            input_length: to_size(number("input_length")?),
            output_length: to_size(number("output_length")?),
            hash_ids: ids.iter().filter_map(Value::as_u64).collect(),
        })
    }
}

/// A recorded trace.
#[derive(Debug)]
pub(crate) struct Trace {
    requests: Vec<(Line, u64)>,
}

impl Trace {
    /// Reads a file.
    pub(crate) fn read(path: &str) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        Self::parse(&text).map_err(|error| format!("{path}: {error}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut owner: HashMap<u64, u64> = HashMap::new();
        let mut requests = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = Line::parse(line).map_err(|error| format!("line {}: {error}", number + 1))?;
            let known = line.hash_ids.iter().take_while(|id| owner.contains_key(id)).count();
            let before = known.checked_sub(1).filter(|_| known * 2 > line.hash_ids.len());
            let session = before.map_or(number as u64, |last| owner[&line.hash_ids[last]]);
            for id in &line.hash_ids[known..] {
                owner.insert(*id, session);
            }
            requests.push((line, session));
        }
        Ok(Self { requests })
    }

    /// What arrives from this ms on, so much faster, and no more than so many requests. It starts at 0 again.
    pub(crate) fn part(&self, from: f64, speed: f64, most: Option<usize>) -> Self {
        let late = self.requests.iter().filter(|(line, _)| line.timestamp >= from);
        let moved = late.map(|(line, session)| {
            let timestamp = (line.timestamp - from) / speed;
            (Line { timestamp, ..line.clone() }, *session)
        });
        Self { requests: moved.take(most.unwrap_or(usize::MAX)).collect() }
    }

    /// When the last request arrives, ms.
    pub(crate) fn length(&self) -> f64 {
        self.requests.iter().map(|(line, _)| line.timestamp).fold(0.0, f64::max)
    }
}

impl<P: Prompt> Clients<P> for Arc<Trace> {
    fn start(&self) -> Vec<(f64, usize)> {
        self.requests.iter().enumerate().map(|(id, (line, _))| (line.timestamp, id)).collect()
    }

    fn wake(&mut self, id: usize, out: &mut Vec<Ask<P>>) {
        let (line, session) = &self.requests[id];
        let (mut prompt, mut left) = (P::default(), line.input_length);
        for block in &line.hash_ids {
            prompt.push(*block, left.min(TRACE_BLOCK));
            left = left.saturating_sub(TRACE_BLOCK);
        }
        let answer = (Rng::of(&[Purpose::Answer as u64, id as u64]).next(), line.output_length);
        out.push(Ask { session: *session, named: false, prompt, answer });
    }

    fn answered(&mut self, _: usize, _: bool) -> Option<f64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_and_its_sessions_are_found() {
        let text = r#"{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 10, "input_length": 700, "output_length": 5, "hash_ids": [0, 9]}
{"timestamp": 20, "input_length": 1600, "output_length": 5, "hash_ids": [0, 1, 2, 3]}"#;
        let mut trace = Arc::new(Trace::parse(text).unwrap());
        assert_eq!(trace.requests.iter().map(|(_, session)| *session).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!(trace.length(), 20.0);
        let mut out: Vec<Ask> = Vec::new();
        (0..3).for_each(|id| trace.wake(id, &mut out));
        assert_eq!(out[0].prompt.tokens(), 1100);
        assert_eq!(out[0].prompt.chain()[..4], out[2].prompt.chain()[..4]);
        assert!(Trace::parse("{}").is_err());
    }

    #[test]
    fn a_part_keeps_sessions_and_is_faster() {
        let line =
            |at: u64| format!(r#"{{"timestamp": {at}, "input_length": 9, "output_length": 5, "hash_ids": [4]}}"#);
        let trace = Trace::parse(&[0, 1000, 3000, 5000].map(line).join("\n")).unwrap();
        let part = Arc::new(trace.part(1000.0, 2.0, Some(2)));
        assert_eq!(Clients::<crate::sim::content::Text>::start(&part), [(0.0, 0), (1000.0, 1)]);
        assert!(part.requests.iter().all(|(_, session)| *session == 0));
        assert_eq!(trace.part(0.0, 1.0, None).requests.len(), 4);
    }
}
