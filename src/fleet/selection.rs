//! The choice as a selection algorithm of pingora-load-balancing: the key carries the request, the shared fleet is the
//! algorithm's `Config`, and the iterator walks the ranking of `policy::select`.
//!
//! The crate's interface hands back backends and nothing else. What a caller needs besides (the scores and the
//! reason) is left in a slot of the calling thread and taken from there before anything can await; see [`take_decision`].

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
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

thread_local! {
    static DECISION: RefCell<Option<Decision>> = const { RefCell::new(None) };
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

/// Where in a backend's weight the slot ends and the number begins.
const SLOT_BITS: u32 = 16;

const HEADER: usize = 49;
const NO_TURN: u32 = u32::MAX;
const NO_MODEL: u32 = u32::MAX;

/// Lays out a key: sizes of body and prompt, salt, the end of the turn before, who named the session and its key, length
/// of the model's name (all
/// little-endian), the name, the fingerprints.
pub fn encode(key: RouteKey<'_>, chain: &[u64]) -> Vec<u8> {
    let model = key.model.unwrap_or_default();
    let length = key.model.map_or(NO_MODEL, |m| u32::try_from(m.len()).unwrap_or(NO_MODEL));
    let mut out = Vec::with_capacity(HEADER + model.len() + chain.len() * 8);
    out.extend_from_slice(&key.request.body_bytes.to_le_bytes());
    out.extend_from_slice(&key.request.prompt_bytes.to_le_bytes());
    out.extend_from_slice(&key.request.salt.to_le_bytes());
    let previous = key.previous.unwrap_or(Place { print: 0, blocks: NO_TURN });
    out.extend_from_slice(&previous.print.to_le_bytes());
    out.extend_from_slice(&previous.blocks.to_le_bytes());
    out.push(match key.session.map(|s| s.source) {
        None => 0,
        Some(Source::Named) => 1,
        Some(Source::Derived) => 2,
    });
    out.extend_from_slice(&key.session.map_or(0, |s| s.key).to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(model.as_bytes());
    out.extend(chain.iter().flat_map(|print| print.to_le_bytes()));
    out
}

/// Reads a key; `None` when it is not one.
fn decode(key: &[u8]) -> Option<(RouteKey<'_>, Vec<u64>)> {
    let (body_bytes, rest) = key.split_first_chunk::<8>()?;
    let (prompt_bytes, rest) = rest.split_first_chunk::<8>()?;
    let (salt, rest) = rest.split_first_chunk::<8>()?;
    let (print, rest) = rest.split_first_chunk::<8>()?;
    let (blocks, rest) = rest.split_first_chunk::<4>()?;
    let previous = Place { print: u64::from_le_bytes(*print), blocks: u32::from_le_bytes(*blocks) };
    let ([source], rest) = rest.split_first_chunk::<1>()?;
    let (session, rest) = rest.split_first_chunk::<8>()?;
    let session = |source| Some(Hint { key: u64::from_le_bytes(*session), source });
    let session = match source {
        1 => session(Source::Named),
        2 => session(Source::Derived),
        _ => None,
    };
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length);
    let (model, prints) = if length == NO_MODEL {
        (None, rest)
    } else {
        let (name, prints) = rest.split_at_checked(length as usize)?;
        (Some(std::str::from_utf8(name).ok()?), prints)
    };
    let (prints, _) = prints.as_chunks::<8>();
    let request = RouteRequest {
        body_bytes: u64::from_le_bytes(*body_bytes),
        prompt_bytes: u64::from_le_bytes(*prompt_bytes),
        blocks: u32::try_from(prints.len()).unwrap_or(u32::MAX),
        tokens: Tokens::default(),
        salt: u64::from_le_bytes(*salt),
    };
    let previous = Some(previous).filter(|p| p.blocks != NO_TURN);
    let key = RouteKey { request, model, previous, session };
    Some((key, prints.iter().map(|p| u64::from_le_bytes(*p)).collect()))
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

/// Backends in the order of a ranking.
pub struct RankedBackends {
    selection: Arc<CacheAware>,
    order: SmallVec<[ReplicaId; 4]>,
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
        let decision = self.decide(key);
        let order = decision.iter().flat_map(|d| &d.ranked).map(|r| r.id).collect();
        DECISION.with_borrow_mut(|slot| *slot = decision);
        RankedBackends { selection: self.clone(), order, next: 0 }
    }
}

impl CacheAware {
    fn decide(&self, key: &[u8]) -> Option<Decision> {
        let fleet = self.fleet.as_ref()?;
        let (mut key, chain) = decode(key)?;
        let bytes = if chain.is_empty() { key.request.body_bytes } else { key.request.prompt_bytes };
        key.request.tokens = fleet.tokens_after(key.previous, bytes, key.model);
        fleet.choose(self.members.iter().map(|(_, replica)| replica), &key, &chain)
    }
}

impl BackendIter for RankedBackends {
    fn next(&mut self) -> Option<&Backend> {
        let id = *self.order.get(self.next)?;
        self.next += 1;
        let at = self.selection.members.binary_search_by_key(&id, |(_, replica)| replica.id).ok()?;
        Some(&self.selection.members[at].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_encoding() {
        let request =
            RouteRequest { body_bytes: 7, prompt_bytes: 5, blocks: 3, tokens: Tokens::default(), salt: u64::MAX };
        for model in [None, Some(""), Some("größe")] {
            let session =
                model.map(|m| Hint { key: 9, source: if m.is_empty() { Source::Named } else { Source::Derived } });
            for previous in [None, Some(Place { print: u64::MAX, blocks: 7 })] {
                let key = RouteKey { request, model, previous, session };
                assert_eq!(decode(&encode(key, &[1, 2, 3])), Some((key, vec![1, 2, 3])));
            }
        }
        assert_eq!(decode(b"short"), None);
    }
}
