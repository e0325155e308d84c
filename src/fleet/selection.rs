//! The choice as a selection algorithm of pingora-load-balancing: the key carries the request, the shared fleet is the
//! algorithm's `Config`, and the iterator walks the ranking of `policy::select`.
//!
//! The crate's interface takes bytes and hands back backends, nothing else. What goes beside (the fingerprints, which
//! are many, and back the scores and the reason) is left in slots of the calling thread and taken from there before
//! anything can await; see [`offer_chain`] and [`take_decision`].

use super::Fleet;
use super::replica::Replica;
use crate::policy::cost::Tokens;
use crate::policy::hint::{Hint, Source};
use crate::policy::select::{Decision, RouteRequest};
use crate::prefix::fingerprint::Place;
use crate::types::ReplicaId;
use pingora_load_balancing::Backend;
use pingora_load_balancing::selection::{BackendIter, BackendSelection};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

thread_local! {
    static CHAIN: Cell<Option<Arc<[u64]>>> = const { Cell::new(None) };
    static DECISION: RefCell<Option<Decision>> = const { RefCell::new(None) };
}

/// Leaves the fingerprints of the prompt that the next selection on this thread is for.
pub fn offer_chain(chain: &Arc<[u64]>) {
    CHAIN.set(Some(chain.clone()));
}

/// Takes the decision that the last selection on this thread made.
pub fn take_decision() -> Option<Decision> {
    DECISION.with_borrow_mut(Option::take)
}

/// A request as the opaque key of a selection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteKey<'a> {
    /// What is to be placed.
    pub request: RouteRequest,
    /// The model asked for.
    pub model: Option<&'a str>,
    /// Where the prompt of the turn before ended.
    pub previous: Option<Place>,
    /// The session that it belongs to.
    pub session: Option<Hint>,
}

/// An encoded key: seldom longer than this.
pub type Encoded = SmallVec<[u8; 192]>;

/// Where in a backend's weight the slot ends and the number begins.
const SLOT_BITS: u32 = 16;

const NO_TURN: u32 = u32::MAX;

/// Lays out a key: sizes of body and prompt, blocks, salt, sizes in tokens, the end of the turn before, who named the
/// session and its key, whether there is a model (all little-endian), and its name.
pub fn encode(key: RouteKey<'_>) -> Encoded {
    let RouteRequest { body_bytes, prompt_bytes, blocks, tokens, salt } = key.request;
    let previous = key.previous.unwrap_or(Place { print: 0, blocks: NO_TURN });
    let mut out = Encoded::new();
    for number in [body_bytes, prompt_bytes, salt, previous.print, key.session.map_or(0, |s| s.key)] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    for number in [tokens.prompt, tokens.block, tokens.output] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    for number in [blocks, previous.blocks] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.push(match key.session.map(|s| s.source) {
        None => 0,
        Some(Source::Named) => 1,
        Some(Source::Derived) => 2,
    });
    out.push(u8::from(key.model.is_some()));
    out.extend_from_slice(key.model.unwrap_or_default().as_bytes());
    out
}

/// Reads a key; `None` when it is not one.
fn decode(key: &[u8]) -> Option<RouteKey<'_>> {
    let (numbers, rest) = key.split_first_chunk::<40>()?;
    let (tokens, rest) = rest.split_first_chunk::<24>()?;
    let (blocks, rest) = rest.split_first_chunk::<8>()?;
    let ([source, has_model], name) = rest.split_first_chunk::<2>()?;
    let number = |n: usize| numbers.as_chunks().0.get(n).map(|bytes| u64::from_le_bytes(*bytes));
    let token = |n: usize| tokens.as_chunks().0.get(n).map(|bytes| f64::from_le_bytes(*bytes));
    let block = |n: usize| blocks.as_chunks().0.get(n).map(|bytes| u32::from_le_bytes(*bytes));
    let source = match source {
        1 => Some(Source::Named),
        2 => Some(Source::Derived),
        _ => None,
    };
    let (session, previous) = (number(4)?, Place { print: number(3)?, blocks: block(1)? });
    Some(RouteKey {
        request: RouteRequest {
            body_bytes: number(0)?,
            prompt_bytes: number(1)?,
            blocks: block(0)?,
            tokens: Tokens { prompt: token(0)?, block: token(1)?, output: token(2)?, turns: 0.0 },
            salt: number(2)?,
        },
        model: if *has_model == 0 { None } else { Some(std::str::from_utf8(name).ok()?) },
        previous: Some(previous).filter(|p| p.blocks != NO_TURN),
        session: source.map(|source| Hint { key: session, source }),
    })
}

/// A backend of this replica. The weight is what tells replicas apart that share an address, and a replica from its
/// successor: a balancer takes no notice of anything else.
pub fn backend(replica: &Replica, address: std::net::SocketAddr) -> Backend {
    let weight = (replica.number as usize) << SLOT_BITS | (replica.id.index() + 1);
    Backend { addr: address.into(), weight, ext: http::Extensions::new() }
}

/// The slot of the replica that a backend stands for.
pub fn replica_of(backend: &Backend) -> ReplicaId {
    let place = backend.weight % (1 << SLOT_BITS);
    ReplicaId(u16::try_from(place.saturating_sub(1)).unwrap_or(u16::MAX))
}

/// The selection algorithm: rebuilt when the membership changes, over state that survives it.
pub struct CacheAware {
    fleet: Option<Arc<Fleet>>,
    /// Backends in the order of their slots, each with its replica.
    members: Vec<(Backend, Arc<Replica>)>,
}

/// Backends in the order of a ranking. The decision is left for the caller when this goes.
pub struct RankedBackends {
    selection: Arc<CacheAware>,
    decision: Option<Decision>,
    next: usize,
}

impl BackendSelection for CacheAware {
    type Iter = RankedBackends;
    type Config = Arc<Fleet>;

    fn build_with_config(backends: &BTreeSet<Backend>, fleet: &Arc<Fleet>) -> Self {
        let member = |b: &Backend| Some((b.clone(), fleet.replica(replica_of(b))?));
        let mut members: Vec<_> = backends.iter().filter_map(member).collect();
        members.sort_by_key(|(_, replica)| replica.id);
        CacheAware { fleet: Some(fleet.clone()), members }
    }

    /// Without the fleet there is nothing to choose by: such a selection offers no backend.
    fn build(_: &BTreeSet<Backend>) -> Self {
        CacheAware { fleet: None, members: Vec::new() }
    }

    fn iter(self: &Arc<Self>, key: &[u8]) -> RankedBackends {
        let chain = CHAIN.take().unwrap_or_default();
        RankedBackends { selection: self.clone(), decision: self.decide(key, &chain), next: 0 }
    }
}

impl CacheAware {
    fn decide(&self, key: &[u8], chain: &[u64]) -> Option<Decision> {
        let fleet = self.fleet.as_ref()?;
        fleet.choose(self.members.iter().map(|(_, replica)| replica), &decode(key)?, chain)
    }
}

impl BackendIter for RankedBackends {
    fn next(&mut self) -> Option<&Backend> {
        let id = self.decision.as_ref()?.ranked.at(self.next)?.id;
        self.next += 1;
        let at = self.selection.members.binary_search_by_key(&id, |(_, replica)| replica.id).ok()?;
        Some(&self.selection.members[at].0)
    }
}

impl Drop for RankedBackends {
    fn drop(&mut self) {
        DECISION.with_borrow_mut(|slot| *slot = self.decision.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::TURN;

    #[test]
    fn a_key_survives_its_encoding() {
        let request = RouteRequest { body_bytes: 7, prompt_bytes: 5, blocks: 3, salt: u64::MAX, ..TURN };
        for model in [None, Some(""), Some("größe")] {
            let session =
                model.map(|m| Hint { key: 9, source: if m.is_empty() { Source::Named } else { Source::Derived } });
            for previous in [None, Some(Place { print: u64::MAX, blocks: 7 })] {
                let key = RouteKey { request, model, previous, session };
                assert_eq!(decode(&encode(key)), Some(key));
            }
        }
        assert_eq!(decode(b"short"), None);
    }
}
