//! Whether an engine is the one that a replica is configured to be, from what it says of itself: driven by values.
//!
//! A replica with an identity gets no request before its engine has said that it has it, and none from the moment at
//! which that is no longer certain: when it says something else, says nothing where it should, or could not be reached
//! (what answers next may be another engine). Engines that are only late are believed for as many questions as a probe
//! may fail. Nothing bypasses this, failing open included.

use super::health::FenceReason;
use std::fmt;

/// What an engine must say of itself. Nothing is asked of what is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// A model that it lists.
    pub model: Option<String>,
    /// The context length, in tokens, of that model; without a model, of every one that it lists.
    pub context: Option<u64>,
    /// The version of the engine.
    pub version: Option<String>,
    /// A document that it shows.
    pub document: Option<Document>,
}

/// A document by its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Where it is, without a replica's own prefix.
    pub path: String,
    /// The SHA-256 digest of all its bytes.
    pub sha256: [u8; 32],
}

/// What an engine says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advertised {
    /// Models by name, with their context lengths where it tells.
    pub models: Vec<(String, Option<u64>)>,
    /// Its version.
    pub version: Option<String>,
    /// The digest of the document that was asked for.
    pub document: Option<[u8; 32]>,
}

/// A part of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The model.
    Model,
    /// Its context length.
    Context,
    /// The engine's version.
    Version,
    /// The document.
    Document,
}

/// How an engine differs from what is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// In what.
    pub part: Part,
    /// What is configured.
    pub wanted: String,
    /// What it says; cut where it is long.
    pub found: String,
}

/// What a question about the identity brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The engine said who it is.
    Said(Result<(), Mismatch>),
    /// It did not answer in time, or said that it cannot yet.
    Late,
    /// It could not be reached.
    Gone,
}

/// Whether requests are let in, as far as the identity goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    state: State,
    /// How often it became doubtful: an answer to an older question says nothing.
    doubts: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing is asked of it.
    #[default]
    Free,
    Unknown,
    Admitted {
        missed: u32,
    },
    Refused(Mismatch),
}

/// A question that was put, for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question(u64);

/// The most of what an engine says that is repeated.
const SHOWN: usize = 80;

impl Identity {
    /// Whether anything is asked.
    pub fn is_empty(&self) -> bool {
        *self == Identity::default()
    }

    /// Whether `advertised` is it.
    ///
    /// # Errors
    /// The first difference.
    pub fn judge(&self, advertised: &Advertised) -> Result<(), Mismatch> {
        let named = |name: &str| self.model.as_deref().is_none_or(|wanted| wanted == name);
        let mine: Vec<_> = advertised.models.iter().filter(|(name, _)| named(name)).collect();
        if let Some(wanted) = &self.model
            && mine.is_empty()
        {
            let listed: Vec<_> = advertised.models.iter().map(|(name, _)| name.as_str()).collect();
            return differs(Part::Model, wanted, Some(listed.join(", ")).filter(|list| !list.is_empty()));
        }
        if let Some(wanted) = self.context {
            let other = mine.iter().map(|(_, length)| *length).find(|length| *length != Some(wanted));
            if let Some(found) = other.or_else(|| mine.is_empty().then_some(None)) {
                return differs(Part::Context, &wanted.to_string(), found.map(|length| length.to_string()));
            }
        }
        if let Some(wanted) = &self.version
            && advertised.version.as_ref() != Some(wanted)
        {
            return differs(Part::Version, wanted, advertised.version.clone());
        }
        match &self.document {
            Some(wanted) if advertised.document != Some(wanted.sha256) => {
                differs(Part::Document, &hex(&wanted.sha256), advertised.document.map(|digest| hex(&digest)))
            }
            _ => Ok(()),
        }
    }
}

fn differs(part: Part, wanted: &str, found: Option<String>) -> Result<(), Mismatch> {
    let found = found.unwrap_or_else(|| "nothing".to_owned());
    let found = found.chars().filter(|c| !c.is_control()).take(SHOWN).collect();
    Err(Mismatch { part, wanted: wanted.to_owned(), found })
}

fn hex(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Admission {
    /// The admission of a replica that is asked for an identity (`required`), or is not.
    pub fn new(required: bool) -> Self {
        Admission { state: if required { State::Unknown } else { State::Free }, doubts: 0 }
    }

    /// Something else is asked of it from now on, or of an engine elsewhere: what was asked before says nothing.
    pub fn begin_anew(&mut self, required: bool) {
        *self = Admission { doubts: self.doubts + 1, ..Self::new(required) };
    }

    /// Whether anything is asked of it.
    pub fn is_required(&self) -> bool {
        self.state != State::Free
    }

    /// Why requests are kept away, if they are.
    pub fn fence(&self) -> Option<FenceReason> {
        match &self.state {
            State::Free | State::Admitted { .. } => None,
            State::Unknown => Some(FenceReason::IdentityUnknown),
            State::Refused(mismatch) => Some(match mismatch.part {
                Part::Model => FenceReason::IdentityModel,
                Part::Context => FenceReason::IdentityContext,
                Part::Version => FenceReason::IdentityVersion,
                Part::Document => FenceReason::IdentityDocument,
            }),
        }
    }

    /// How the engine differs, if that is why.
    pub fn mismatch(&self) -> Option<&Mismatch> {
        match &self.state {
            State::Refused(mismatch) => Some(mismatch),
            _ => None,
        }
    }

    /// A question is put.
    pub fn ask(&self) -> Question {
        Question(self.doubts)
    }

    /// It was answered; an engine may be late `failures` times before it is no longer believed.
    pub fn on(&mut self, question: Question, seen: Seen, failures: u32) {
        if !self.is_required() || question.0 != self.doubts {
            return;
        }
        match (seen, &mut self.state) {
            (Seen::Said(Ok(())), state) => *state = State::Admitted { missed: 0 },
            (Seen::Said(Err(mismatch)), state) => *state = State::Refused(mismatch),
            (Seen::Gone, _) => {
                self.doubt();
            }
            (Seen::Late, State::Admitted { missed }) => {
                *missed += 1;
                if *missed >= failures {
                    self.state = State::Unknown;
                }
            }
            (Seen::Late, _) => {}
        }
    }

    /// Something happened after which another engine may be there; whether it was believed until now.
    pub fn doubt(&mut self) -> bool {
        if !self.is_required() {
            return false;
        }
        self.doubts += 1;
        let was_known = self.state != State::Unknown;
        self.state = State::Unknown;
        was_known
    }
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Model => "model",
            Part::Context => "context length",
            Part::Version => "version",
            Part::Document => "identity document",
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?} is configured, the engine says {:?}", self.part.name(), self.wanted, self.found)
    }
}

#[cfg(test)]
mod tests;
