//! What simulated engines say of themselves at `/stats`.

use serde_json::Value;

use super::client::{Client, authority};
use super::report::EngineUse;
use crate::num::share;

/// Counters of one engine at one moment, from its `/stats`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EngineStats {
    pub(crate) running: f64,
    pub(crate) waiting: f64,
    pub(crate) kv: f64,
    busy_ms: f64,
    virtual_ms: f64,
    late_ms: f64,
    steps: f64,
}

impl EngineStats {
    /// Asks every engine; one that does not answer counts as idle.
    pub(crate) async fn all(urls: &[String]) -> Vec<Self> {
        let mut all = Vec::new();
        for url in urls {
            let host = authority(url).unwrap_or_default();
            let body = Client::default().get(host, "/stats").await.unwrap_or_default();
            let json: Value = serde_json::from_slice(&body).unwrap_or_default();
            let number = |key: &str| json.get(key).and_then(Value::as_f64).unwrap_or(0.0);
            all.push(Self {
                running: number("running"),
                waiting: number("waiting"),
                kv: share(number("kv_blocks"), number("kv_capacity")),
                busy_ms: number("busy_ms"),
                virtual_ms: number("virtual_ms"),
                late_ms: number("late_ms"),
                steps: number("steps"),
            });
        }
        all
    }

    /// What happened between two moments.
    pub(crate) fn since(&self, before: &Self) -> EngineUse {
        let late = self.late_ms * self.steps - before.late_ms * before.steps;
        EngineUse {
            busy: share(self.busy_ms - before.busy_ms, self.virtual_ms - before.virtual_ms),
            kv: self.kv,
            late_ms: share(late, self.steps - before.steps),
        }
    }
}
