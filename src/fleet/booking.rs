//! What is held for a request at its replica: its share of the load and its claim on what it reads.

use super::Fleet;
use super::claim::ClaimGuard;
use super::reservation::{Reservation, Share};
use super::router::Prompt;
use super::steps::{Change, Ending, Step, note};
use crate::policy::cost::Tokens;
use crate::policy::estimate;
use crate::policy::select::Ranked;
use crate::prefix::residency::Size;
use crate::types::{FlightMode, ReplicaId};
use std::sync::Arc;

impl Fleet {
    /// A step begins; see [`super::steps`]. What is done until it goes counts as done at one moment.
    pub fn step(&self) -> Step<'_> {
        self.steps.begin(&self.clock)
    }

    /// Reserves what a place in a ranking says for a prompt of so many tokens, on its replica.
    pub(super) fn reserve(&self, ranked: Ranked, prompt: Prompt<'_>, tokens: Tokens) -> Option<Reservation> {
        let replica = self.replica(ranked.id)?;
        // whatever its rates are
        let whole = estimate::START.prefill_ms(tokens.prompt, 0.0)
            / estimate::START.prefill_ms((tokens.prompt - ranked.held).max(1.0), ranked.held);
        let share = Share {
            units: ranked.units,
            prefill_ms: ranked.price.prefill,
            whole_ms: ranked.price.prefill * whole.max(1.0),
            decode_ms: ranked.price.answer,
            streams: prompt.streams,
            // of what is generated the prompt is read
            generates: prompt.prompt_bytes > 0,
        };
        Some(Reservation::new(replica, share, self.clock()).telling(&self.steps, prompt.request))
    }

    /// Claims a prompt of so many tokens for a replica.
    pub(super) fn claim_of(self: &Arc<Self>, replica: ReplicaId, prompt: Prompt<'_>, tokens: Tokens) -> ClaimGuard {
        let size = Size { prompt: tokens.prompt, block: tokens.block, ends: prompt.ends };
        let claim = ClaimGuard::new(self, prompt.chain, size, replica).of(prompt.request, prompt.session);
        match self.params().flight.mode {
            FlightMode::Hold => claim.announced(prompt.streams),
            _ => claim,
        }
    }

    /// The same for one whose size is estimated now.
    pub(super) fn claim(self: &Arc<Self>, replica: ReplicaId, prompt: Prompt<'_>) -> ClaimGuard {
        let tokens = self.tokens_after(prompt.ends.previous, prompt.prompt_bytes, prompt.model);
        self.claim_of(replica, prompt, tokens)
    }

    /// What a placed prompt claims at once.
    pub(super) fn claim_first(self: &Arc<Self>, replica: ReplicaId, prompt: Prompt<'_>, tokens: Tokens) -> ClaimGuard {
        // one without fingerprints was measured by its body
        if prompt.chain.is_empty() { self.claim(replica, prompt) } else { self.claim_of(replica, prompt, tokens) }
    }

    /// Tells what came of a request, if anybody is told of steps.
    pub fn tell_end(&self, request: u64, ending: impl FnOnce() -> Ending) {
        let _step = self.step();
        note(|| Change::Ended(request, ending()));
    }

    /// Learns of a model from a request of so many canonical bytes (0 if unknown), prompt tokens and output tokens.
    pub fn learn_model(&self, model: Option<&str>, prompt_bytes: u64, prompt: u64, output: Option<u64>) {
        let _step = self.step();
        self.models.learn(model, prompt_bytes, prompt, output);
        note(|| Change::Model(model.map(str::to_owned), prompt_bytes, prompt, output));
    }
}
