//! `POST /api/reload`: the configuration is read again, and the answer says what came of it.

use super::Answer;
use super::json::document;
use crate::fleet::members::Change;
use async_trait::async_trait;

/// Reads the configuration again.
#[async_trait]
pub trait Reloads: Send + Sync {
    /// Does it; a bad configuration changes nothing.
    async fn reload(&self) -> Report;
}

/// What came of a reload.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong with the configuration, one line each. Then nothing has changed.
    pub problems: Vec<String>,
    /// How many configurations were in force, this one included.
    pub generation: i64,
    /// What is not as it was.
    pub changed: Vec<String>,
    /// Settings that keep their old values until an upgrade.
    pub needs_upgrade: Vec<String>,
    /// Who came, left and changed.
    pub replicas: Change,
    /// What the operator should know although nothing is wrong.
    pub warnings: Vec<String>,
}

impl Report {
    /// Whether the configuration is in force.
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }

    /// As an answer of the API.
    pub(super) fn answer(&self) -> Answer {
        const BAD: &str = "the configuration is not good, and nothing has changed";
        let body = document(|o| {
            o.text("outcome", if self.is_good() { "applied" } else { "refused" });
            if !self.is_good() {
                o.object("error", Some(BAD), |o, message| o.text("message", message));
                return o.texts("problems", &self.problems);
            }
            o.plain("generation", self.generation);
            o.texts("changed", &self.changed);
            o.texts("needs_upgrade", &self.needs_upgrade);
            o.object("replicas", Some(&self.replicas), |o, replicas| {
                o.texts("added", &replicas.added);
                o.texts("removed", &replicas.removed);
                o.texts("changed", &replicas.changed);
            });
            o.texts("warnings", &self.warnings);
        });
        Answer { status: if self.is_good() { 200 } else { 422 }, kind: super::JSON, body: body.into_bytes() }
    }
}
