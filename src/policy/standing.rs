//! The state of a replica from everything that is known of it: two kinds of probes, what requests met, and what the
//! operator said. Each has its own hysteresis; the worst counts, and the reason is always named.

use super::admission::Admission;
use super::errors::Errors;
use super::health::{FenceReason, Health, Observation, Thresholds, Transition};
use crate::pack::Pack;

/// Whether new requests may come. The words appear in `/health` and in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// They may.
    Healthy,
    /// A few may, to see how they end.
    Recovering,
    /// Something is wrong.
    Fenced(FenceReason),
    /// An operator said so, or it has left the fleet.
    Draining,
}

/// Everything that is known of a replica's health.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    readiness: Health,
    generation: Health,
    /// What requests met there.
    pub errors: Errors,
    /// Whether an operator keeps new requests away.
    pub draining: bool,
    /// Whether its engine is the one that it must be.
    pub admission: Admission,
    /// Why the guard of speculative decoding keeps new requests away.
    pub quarantine: Option<FenceReason>,
    /// Whether it belongs to the fleet no longer.
    pub has_left: bool,
}

impl Pack for Standing {
    /// Without what nothing bypasses: that is this process's own to find out.
    fn pack(&self, out: &mut Vec<u8>) {
        self.readiness.pack(out);
        self.generation.pack(out);
        self.errors.pack(out);
        self.draining.pack(out);
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        let (readiness, generation) = (Health::unpack(from)?, Health::unpack(from)?);
        let (errors, draining) = (Errors::unpack(from)?, bool::unpack(from)?);
        Some(Standing { readiness, generation, errors, draining, ..Standing::default() })
    }
}

impl State {
    /// How many states there are, a fence counted once for each reason.
    pub const COUNT: usize = 3 + FenceReason::ALL.len();

    /// Every state, in the order of [`State::index`].
    pub fn all() -> impl Iterator<Item = State> {
        let fenced = FenceReason::ALL.into_iter().map(State::Fenced);
        [State::Healthy, State::Recovering, State::Draining].into_iter().chain(fenced)
    }

    /// Its place among all states.
    pub fn index(self) -> usize {
        match self {
            State::Healthy => 0,
            State::Recovering => 1,
            State::Draining => 2,
            State::Fenced(reason) => 3 + reason as usize,
        }
    }

    /// The same in a byte: there are far fewer than 256 states.
    pub fn place(self) -> u8 {
        u8::try_from(self.index()).unwrap_or(u8::MAX)
    }

    /// The word.
    pub fn label(self) -> &'static str {
        match self {
            State::Healthy => "healthy",
            State::Recovering => "recovering",
            State::Fenced(_) => "fenced",
            State::Draining => "draining",
        }
    }

    /// Why it is fenced.
    pub fn fence(self) -> Option<FenceReason> {
        match self {
            State::Fenced(reason) => Some(reason),
            _ => None,
        }
    }

    /// Whether nothing brings new requests there, failing open included.
    pub fn is_barred(self) -> bool {
        match self {
            State::Draining => true,
            State::Fenced(reason) => reason.is_final(),
            State::Healthy | State::Recovering => false,
        }
    }

    /// Whether new requests may come, if only a few.
    pub fn is_healthy(self) -> bool {
        matches!(self, State::Healthy | State::Recovering)
    }
}

impl Standing {
    /// What is known of a replica before anything was seen of it; whether it is asked for an identity.
    pub fn new(has_identity: bool) -> Self {
        Standing { admission: Admission::new(has_identity), ..Standing::default() }
    }

    /// Nothing is known but whether an operator keeps new requests away.
    pub fn said(draining: bool) -> Self {
        Standing { draining, ..Standing::default() }
    }

    /// The same, with what another process knew; what nothing bypasses is not taken from there.
    #[must_use]
    pub fn following(self, known: Standing) -> Self {
        let Standing { admission, quarantine, has_left, .. } = self;
        Standing { admission, quarantine, has_left, ..known }
    }

    /// Why it would be fenced if nobody drained it.
    fn fence(&self) -> Option<FenceReason> {
        let is_final = self.admission.fence().or(self.quarantine);
        let probes = self.readiness.fence().or(self.generation.fence());
        is_final.or(probes).or_else(|| self.errors.is_fenced().then_some(FenceReason::Errors))
    }

    /// Whether nothing but an operator keeps new requests away.
    pub fn is_only_drained(&self) -> bool {
        self.draining && !self.has_left && self.fence().is_none() && !self.errors.is_on_trial()
    }

    /// The state.
    pub fn state(&self) -> State {
        match self.fence() {
            _ if self.draining || self.has_left => State::Draining,
            Some(reason) => State::Fenced(reason),
            None if self.errors.is_on_trial() => State::Recovering,
            None => State::Healthy,
        }
    }

    /// A readiness probe came back.
    pub fn on_readiness(&mut self, seen: Observation, thresholds: Thresholds) -> Option<Transition> {
        self.readiness.on(seen, thresholds)
    }

    /// A generation probe came back, or requests showed that nothing is generated.
    pub fn on_generation(&mut self, seen: Observation, thresholds: Thresholds) -> Option<Transition> {
        self.generation.on(seen, thresholds)
    }

    /// Whether nothing is generated there, whatever else is wrong.
    pub fn is_barren(&self) -> bool {
        !self.generation.is_healthy()
    }
}

#[cfg(test)]
mod tests {
    use super::super::admission::Seen;
    use super::*;

    const ONE: Thresholds = Thresholds { failures: 1, successes: 1 };

    #[test]
    fn each_signal_fences_and_lifts_its_own_and_a_drain_covers_all() {
        let mut s = Standing::default();
        assert_eq!(s.state(), State::Healthy);
        s.on_generation(Observation::Failed(FenceReason::Progress), ONE);
        assert_eq!(s.state(), State::Fenced(FenceReason::Progress));
        // it answers readiness probes all the time
        s.on_readiness(Observation::Ready, ONE);
        assert!(!s.state().is_healthy() && s.is_barren());
        s.on_readiness(Observation::Failed(FenceReason::Connect), ONE);
        assert_eq!(s.state().fence(), Some(FenceReason::Connect));
        s.draining = true;
        assert!(!s.is_only_drained());
        s.on_readiness(Observation::Ready, ONE);
        s.on_generation(Observation::Ready, ONE);
        assert_eq!((s.state(), s.is_only_drained()), (State::Draining, true));
        s.draining = false;
        assert_eq!(s.state(), State::Healthy);
    }

    #[test]
    fn what_nothing_bypasses_comes_first_and_is_known_by_its_place() {
        let mut s = Standing::new(true);
        assert_eq!(s.state(), State::Fenced(FenceReason::IdentityUnknown));
        s.on_readiness(Observation::Failed(FenceReason::Connect), ONE);
        assert!(s.state().is_barred());
        s.admission.on(s.admission.ask(), Seen::Said(Ok(())), 1);
        assert_eq!(s.state(), State::Fenced(FenceReason::Connect));
        s.quarantine = Some(FenceReason::Speculation);
        assert_eq!(s.state(), State::Fenced(FenceReason::Speculation));
        s.draining = true;
        assert_eq!(s.state(), State::Draining);
        let barred = |label: &str| label.starts_with("identity") || label.starts_with("speculation");
        for reason in FenceReason::ALL {
            assert_eq!(State::Fenced(reason).is_barred(), barred(reason.label()), "{}", reason.label());
        }
        assert!(State::Draining.is_barred() && !State::Healthy.is_barred() && !State::Recovering.is_barred());
    }

    #[test]
    fn every_state_has_a_place_of_its_own() {
        let places: Vec<_> = State::all().map(State::index).collect();
        assert_eq!(places, (0..State::COUNT).collect::<Vec<_>>());
    }
}
