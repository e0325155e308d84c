//! The settings of guards that an operator turns on: what an engine must be, and speculative decoding that must work.

use std::path::PathBuf;
use std::time::Duration;

use super::kind::{FilePath, LINE, OrNull, REQUEST_PATH, SHA256, choice, count, span};
use super::node::Node;
use super::page::Page;
use super::reader::Reader;
use super::schema::{Kind, Section, settings};
use crate::types::GuardMode;

settings! {
    /// What an engine must say of itself before it gets a request, and again at every readiness probe and after each
    /// connection that failed. Whatever it does not say is a difference. Nothing is asked of what is null.
    pub struct Identity {
        /// A model that it lists on /v1/models.
        model: Option<String> = None, OrNull(LINE);
        /// The context length (max_model_len) of that model, in tokens; without a model, of all that it lists.
        context: Option<u32> = None, OrNull(count(1..=u32::MAX));
        /// Its version, as /version, /server_info or /props (llama.cpp: build_info) tells.
        engine_version: Option<String> = None, OrNull(LINE);
        /// The path of a document that it, or what stands before it, shows: at most 4 MiB.
        document: Option<String> = None, OrNull(REQUEST_PATH);
        /// The SHA-256 digest of all bytes of that document.
        document_sha256: Option<String> = None, OrNull(SHA256);
    }

    /// The guard of speculative decoding, for engines that count drafts in /metrics (vLLM, SGLang).
    pub struct Speculation {
        /// quarantine: a replica whose drafts are never accepted gets no new requests, whatever else is fenced, until its
        /// engine has restarted (its start time changed, or its counters fell) or an operator says so with POST
        /// /api/replicas/NAME/release; observe: the log says so; off: nobody looks.
        mode: GuardMode = GuardMode::Off, choice();
        /// The time between two looks at a replica's metrics.
        interval: Duration = Duration::from_secs(10), span(Duration::from_secs(2)..=Duration::from_secs(3_600));
        /// Proposed drafts (vLLM: tokens; SGLang: rounds) that make a window, however long that takes.
        drafts: u32 = 200, count(1..=1_000_000_000);
        /// Windows in a row without an accepted draft that count.
        windows: u32 = 6, count(1..=1_000);
        /// Where quarantines are written down, so that no restart of ramjet forgets them. The file and its directory must
        /// belong to ramjet's user or root, and nobody else may write there. If it cannot be believed, all replicas are
        /// kept away until they are released.
        state_file: PathBuf = PathBuf::from("/var/lib/ramjet/quarantine"), FilePath;
    }
}

impl Eq for Identity {}

impl Identity {
    /// The same, with what it leaves out taken from `other`.
    pub(super) fn or(self, other: &Identity) -> Identity {
        let (document, document_sha256) = match self.document {
            None => (other.document.clone(), self.document_sha256.or_else(|| other.document_sha256.clone())),
            document => (document, self.document_sha256),
        };
        Identity {
            model: self.model.or_else(|| other.model.clone()),
            context: self.context.or(other.context),
            engine_version: self.engine_version.or_else(|| other.engine_version.clone()),
            document,
            document_sha256,
        }
    }

    /// A document is known by its digest, and a digest is one of a document.
    pub(super) fn check(&self, path: &str, reader: &mut Reader) {
        match (&self.document, &self.document_sha256) {
            (Some(_), None) => reader.report_setting(
                &format!("{path}.document"),
                "no document_sha256 beside it",
                "document and document_sha256, or neither",
            ),
            (None, Some(_)) => reader.report_setting(
                &format!("{path}.document_sha256"),
                "no document beside it",
                "document and document_sha256, or neither",
            ),
            _ => {}
        }
    }
}
