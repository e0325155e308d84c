//! How the sources of replicas do, for metrics.

use parking_lot::Mutex;
use std::collections::BTreeMap;

/// By kind of source.
#[derive(Debug, Default)]
pub struct Sources(Mutex<BTreeMap<&'static str, SourceState>>);

/// How a source does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceState {
    /// Replicas that it lists.
    pub replicas: usize,
    /// How often it could not tell.
    pub failures: u64,
    /// Whether what it lists is what it said before it failed.
    pub is_stale: bool,
}

impl Sources {
    /// A source was asked; it lists so many replicas, which is old if it `failed`.
    pub fn note(&self, kind: &'static str, replicas: usize, failed: bool) {
        let mut sources = self.0.lock();
        let state = sources.entry(kind).or_default();
        *state = SourceState { replicas, failures: state.failures + u64::from(failed), is_stale: failed };
    }

    /// There are no others any more.
    pub fn keep(&self, kinds: &[&'static str]) {
        self.0.lock().retain(|kind, _| kinds.contains(kind));
    }

    /// All of them.
    pub fn all(&self) -> Vec<(&'static str, SourceState)> {
        self.0.lock().iter().map(|(kind, state)| (*kind, *state)).collect()
    }
}
