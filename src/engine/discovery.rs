//! Discovery of the fleet's members: their host names, resolved again at every update. Who is a member is told by
//! `membership`.
//!
//! A name without an answer is an unhealthy replica, not a crash: it is fenced as `unresolved` until it resolves. A
//! replica that had an address keeps it while its name fails, and keeps it while the answer still contains it. When
//! nobody answers there, the name is asked at once: engines that start again elsewhere keep theirs.

use crate::fleet::Fleet;
use crate::fleet::replica::{Replica, ReplicaSpec};
use crate::fleet::selection::backend;
use crate::policy::health::{FenceReason, Observation, Thresholds};
use async_trait::async_trait;
use futures_util::future::join_all;
use pingora_error::Result;
use pingora_load_balancing::Backend;
use pingora_load_balancing::discovery::ServiceDiscovery;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// How long one name may take.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The least time between two searches for a replica that requests did not reach.
const SEARCH_PAUSE: Duration = Duration::from_secs(1);

/// The replicas named in the configuration.
pub struct Configured {
    fleet: Arc<Fleet>,
    thresholds: Box<dyn Fn() -> Thresholds + Send + Sync>,
}

impl Configured {
    /// Discovers the replicas of `fleet`.
    pub fn new(fleet: Arc<Fleet>, thresholds: impl Fn() -> Thresholds + Send + Sync + 'static) -> Self {
        let thresholds = Box::new(thresholds);
        Configured { fleet, thresholds }
    }

    /// The replica at the address to use, given what its name resolved to.
    fn locate(&self, replica: &Replica, answer: &[SocketAddr]) -> Option<Backend> {
        match pick(answer, replica.address()) {
            Some(address) => {
                replica.set_address(address);
                Some(backend(replica, address))
            }
            None => {
                log::warn!("replica {}: its host name has no address", replica.name());
                let unresolved = Observation::Failed(FenceReason::Unresolved);
                replica.observe(unresolved, (self.thresholds)(), self.fleet.clock().now());
                None
            }
        }
    }
}

#[async_trait]
impl ServiceDiscovery for Configured {
    async fn discover(&self) -> Result<(BTreeSet<Backend>, HashMap<u64, bool>)> {
        let replicas = self.fleet.members();
        // each name once, so that the ranks of one engine never end up at different addresses; and all at once: a slow
        // name must not delay the others, nor the probes that wait for this
        let names: BTreeSet<_> = replicas.iter().map(|r| (r.spec.host.as_str(), r.spec.port)).collect();
        let answers = join_all(names.into_iter().map(async |name| (name, resolve(name.0, name.1).await))).await;
        let answers: HashMap<_, _> = answers.into_iter().collect();
        let found = replicas.iter().filter_map(|r| self.locate(r, answers.get(&(r.spec.host.as_str(), r.spec.port))?));
        Ok((found.collect(), HashMap::new()))
    }
}

/// Where replicas are that are to join `fleet`, as far as that can be found out now. Those that stay where they are are not
/// looked for.
pub(super) async fn locate(specs: &[ReplicaSpec], fleet: &Fleet) -> Vec<Option<SocketAddr>> {
    let members = fleet.members();
    let there: BTreeSet<_> = members.iter().map(|r| (r.name(), r.spec.host.as_str(), r.spec.port)).collect();
    let strangers = specs.iter().filter(|s| !there.contains(&(s.name.as_str(), s.host.as_str(), s.port)));
    let names: BTreeSet<_> = strangers.map(|s| (s.host.as_str(), s.port)).collect();
    let answers = join_all(names.into_iter().map(async |name| (name, resolve(name.0, name.1).await))).await;
    let answers: HashMap<_, _> = answers.into_iter().collect();
    specs.iter().map(|s| answers.get(&(s.host.as_str(), s.port))?.first().copied()).collect()
}

/// Looks for a replica that could not be reached; whether it has another address now. One that only answers late
/// (`is_late`) is left where it is as long as its name still says so.
pub async fn relocate(replica: &Replica, is_late: bool) -> bool {
    if literal(&replica.spec.host).is_some() {
        return false;
    }
    let answer = resolve(&replica.spec.host, replica.spec.port).await;
    let known = replica.address();
    if is_late && known.is_some_and(|k| answer.contains(&k)) {
        return false;
    }
    let Some(address) = elsewhere(&answer, known) else { return false };
    replica.set_address(address);
    log::info!("replica {}: its host name has another address now", replica.name());
    true
}

/// The same beside a request whose connection failed; at most one at a time and one a second for each replica.
pub fn look_again(replica: Arc<Replica>, is_late: bool) {
    if literal(&replica.spec.host).is_some() || !replica.begin_search() {
        return;
    }
    tokio::spawn(async move {
        relocate(&replica, is_late).await;
        tokio::time::sleep(SEARCH_PAUSE).await;
        replica.end_search();
    });
}

fn literal(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

async fn resolve(host: &str, port: u16) -> Vec<SocketAddr> {
    if let Some(ip) = literal(host) {
        return vec![SocketAddr::new(ip, port)];
    }
    match tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((host, port))).await {
        Ok(Ok(answer)) => answer.collect(),
        _ => Vec::new(),
    }
}

/// The address to use: the known one while it is still right or nothing else is known, else the first answer.
fn pick(answer: &[SocketAddr], known: Option<SocketAddr>) -> Option<SocketAddr> {
    known.filter(|k| answer.is_empty() || answer.contains(k)).or_else(|| answer.first().copied())
}

/// The answer after the address where nobody was found, so that repeated failures go through all of them: in an order that
/// is the same whatever order they come in.
fn elsewhere(answer: &[SocketAddr], failed: Option<SocketAddr>) -> Option<SocketAddr> {
    let others = || answer.iter().copied().filter(|address| Some(*address) != failed);
    let Some(failed) = failed else { return answer.first().copied() };
    others().filter(|address| *address > failed).min().or_else(|| others().min())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_address_is_kept_while_it_is_not_contradicted() {
        let a: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let b: SocketAddr = "10.0.0.2:80".parse().unwrap();
        assert_eq!(pick(&[b, a], Some(a)), Some(a));
        assert_eq!(pick(&[], Some(a)), Some(a));
        assert_eq!(pick(&[b], Some(a)), Some(b));
        assert_eq!(pick(&[b, a], None), Some(b));
        assert_eq!(pick(&[], None), None);
    }

    #[test]
    fn after_a_failure_another_address_is_taken_if_there_is_one() {
        let a: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let b: SocketAddr = "10.0.0.2:80".parse().unwrap();
        assert_eq!(elsewhere(&[a, b], Some(a)), Some(b));
        assert_eq!(elsewhere(&[b], Some(a)), Some(b));
        assert_eq!(elsewhere(&[a], Some(a)), None);
        assert_eq!(elsewhere(&[], Some(a)), None);
        assert_eq!(elsewhere(&[a], None), Some(a));
        // two of three are dead: the third is found
        let c: SocketAddr = "10.0.0.3:80".parse().unwrap();
        for answer in [[a, b, c], [c, a, b], [b, a, c]] {
            let tried: Vec<_> =
                std::iter::successors(Some(a), |failed| elsewhere(&answer, Some(*failed))).take(4).collect();
            assert_eq!(tried, [a, b, c, a], "{answer:?}");
        }
        assert!(literal("[::1]").is_some() && literal("10.0.0.1").is_some() && literal("engine.test").is_none());
    }
}
