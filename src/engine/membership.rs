//! Who is to be in the fleet: what all sources say together, brought into force while requests run.
//!
//! A source lists replicas: the configuration, a watched file, DNS. What it said last stands until it says something
//! else, so **a source that fails, or says that there is nobody, empties nothing**. One that is new has said nothing yet: it
//! is asked before anything is changed, and counts only if it answers. Of two replicas with one name the
//! first counts, in the order of the sources.
//!
//! The fleet is changed in steps of which none leaves a request without a replica: the new members and their addresses
//! are known before they are chosen from, and who has left is sent nothing more only when the others are chosen from.
//! To pingora-load-balancing all of this is one [`ServiceDiscovery`](super::discovery::Configured).

use super::discovery::locate;
use crate::fleet::Fleet;
use crate::fleet::members::{Change, Wanted};
use crate::fleet::replica::ReplicaSpec;
use crate::fleet::selection::CacheAware;
use async_trait::async_trait;
use futures_util::future::join_all;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use pingora_load_balancing::LoadBalancer;
use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, Notify};

/// How often host names are resolved again.
const RESOLVE_EVERY: Duration = Duration::from_secs(30);
/// How often it is seen whether those that have left have finished.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// What a source says.
pub struct Listed {
    /// The replicas; `None` if they are those that it listed last.
    pub specs: Option<Vec<ReplicaSpec>>,
    /// When it is to be asked again.
    pub again: Duration,
}

/// What a source is to remember, also when another configuration of it takes its place.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Whether it has listed anybody.
    pub is_known: bool,
    /// Which families of addresses its hosts had, four and six.
    pub families: BTreeMap<String, [bool; 2]>,
}

/// Lists replicas.
#[async_trait]
pub trait Source: Send + Sync {
    /// What kind of source it is: a metric label.
    fn kind(&self) -> &'static str;

    /// What tells it from other sources: another one with this text says the same.
    fn place(&self) -> String;

    /// Lists the replicas, or says why it cannot, and when it is to be asked again.
    async fn list(&self, memory: &mut Memory) -> Result<Listed, (String, Duration)>;
}

/// The replicas that the configuration names.
pub struct Static(pub Vec<ReplicaSpec>);

#[async_trait]
impl Source for Static {
    fn kind(&self) -> &'static str {
        "static"
    }

    fn place(&self) -> String {
        String::new()
    }

    async fn list(&self, _: &mut Memory) -> Result<Listed, (String, Duration)> {
        Ok(Listed { specs: Some(self.0.clone()), again: RESOLVE_EVERY })
    }
}

/// A source and what it said.
struct Asked {
    source: Box<dyn Source>,
    memory: Memory,
    listed: Vec<ReplicaSpec>,
    due: Instant,
    /// What is wrong with it, so that it is said once.
    trouble: Option<String>,
}

/// Brings what the sources say into force.
pub struct Membership {
    fleet: Arc<Fleet>,
    balancer: Arc<LoadBalancer<CacheAware>>,
    /// Held while the sources are asked and the fleet is changed.
    state: Mutex<State>,
    wake: Notify,
}

struct State {
    sources: Vec<Asked>,
    /// What is in force.
    applied: Vec<ReplicaSpec>,
    resolve: Instant,
    /// The names that two replicas want, as they were reported.
    doubles: Vec<String>,
}

impl Membership {
    /// Sources come later.
    pub fn new(fleet: Arc<Fleet>, balancer: Arc<LoadBalancer<CacheAware>>) -> Self {
        let state = State { sources: Vec::new(), applied: Vec::new(), resolve: Instant::now(), doubles: Vec::new() };
        Membership { fleet, balancer, state: Mutex::new(state), wake: Notify::new() }
    }

    /// Asks these sources from now on, and at once. Only if those that were not there before have answered, `commit` is
    /// called, and what they all say comes into force. One that was there before and fails now has said what it said then.
    ///
    /// # Errors
    /// What is wrong with those that are new, or that nobody would be left. Nothing has changed.
    pub async fn exchange(
        &self,
        sources: Vec<Box<dyn Source>>,
        commit: impl FnOnce() + Send,
    ) -> Result<Change, Vec<String>> {
        let mut state = self.state.lock().await;
        let (next, failed) = ask_anew(sources, &state.sources).await;
        if !failed.is_empty() {
            return Err(failed);
        }
        let (wanted, doubles) = together(&next, &state.doubles);
        if wanted.is_empty() && !state.applied.is_empty() {
            return Err(vec!["discovery: nobody would be left, no source lists a replica".to_owned()]);
        }
        let addresses = locate(&wanted, &self.fleet).await;
        commit();
        (state.sources, state.doubles) = (next, doubles);
        Ok(self.enforce(&mut state, wanted, addresses).await)
    }

    /// The same for the first sources, of which some may not answer yet.
    pub async fn begin(&self, sources: Vec<Box<dyn Source>>) -> Change {
        let mut state = self.state.lock().await;
        (state.sources, _) = ask_anew(sources, &[]).await;
        let (wanted, doubles) = together(&state.sources, &[]);
        state.doubles = doubles;
        let addresses = locate(&wanted, &self.fleet).await;
        self.enforce(&mut state, wanted, addresses).await
    }

    /// Brings into force what other sources say.
    async fn enforce(&self, state: &mut State, wanted: Vec<ReplicaSpec>, addresses: Vec<Option<SocketAddr>>) -> Change {
        let kinds = state.sources.iter().map(|asked| asked.source.kind()).collect::<Vec<_>>();
        self.fleet.sources().keep(&kinds);
        state.sources.iter().for_each(|asked| asked.note(&self.fleet));
        let change = self.apply(state, wanted, addresses).await;
        self.wake.notify_one();
        change
    }

    /// Asks the sources whose time has come and resolves names when theirs has. When it is time for the next.
    async fn refresh(&self) -> Instant {
        let mut state = self.state.lock().await;
        self.refresh_all(&mut state).await;
        let due = state.sources.iter().map(|asked| asked.due).min();
        due.unwrap_or(state.resolve).min(state.resolve).min(Instant::now() + TIDY_EVERY)
    }

    async fn refresh_all(&self, state: &mut State) {
        let now = Instant::now();
        join_all(state.sources.iter_mut().filter(|asked| asked.due <= now).map(|asked| asked.renew(&self.fleet))).await;
        let (wanted, doubles) = together(&state.sources, &state.doubles);
        state.doubles = doubles;
        let addresses = if wanted == state.applied { Vec::new() } else { locate(&wanted, &self.fleet).await };
        self.apply(state, wanted, addresses).await;
    }

    /// Makes the wanted replicas the members, if that is news, and chooses from them once names are resolved, which is also
    /// done from time to time.
    async fn apply(&self, state: &mut State, wanted: Vec<ReplicaSpec>, addresses: Vec<Option<SocketAddr>>) -> Change {
        let mut change = Change::default();
        let is_news = wanted != state.applied;
        if is_news {
            let located = wanted.iter().cloned().zip(addresses);
            change = self.fleet.change(located.map(|(spec, address)| Wanted { spec, address }).collect());
            state.applied = wanted;
            tell(&change);
        }
        if is_news || state.resolve <= Instant::now() {
            state.resolve = Instant::now() + RESOLVE_EVERY;
            if let Err(e) = self.balancer.update().await {
                log::error!("the balancer's members could not be changed: {e}");
            }
        }
        self.fleet.tidy();
        change
    }
}

/// Asks all of `sources`; those of the same kind and place as one that was there `before` go on from what that said. Also
/// what is wrong with those that are new and fail.
async fn ask_anew(sources: Vec<Box<dyn Source>>, before: &[Asked]) -> (Vec<Asked>, Vec<String>) {
    let mut next: Vec<_> = sources.into_iter().map(Asked::new).collect();
    let mut is_new = Vec::with_capacity(next.len());
    for asked in &mut next {
        let is_same = |b: &&Asked| b.source.kind() == asked.source.kind() && b.source.place() == asked.source.place();
        let known = before.iter().find(is_same);
        is_new.push(known.is_none());
        if let Some(known) = known {
            (asked.memory, asked.listed) = (known.memory.clone(), known.listed.clone());
            asked.trouble.clone_from(&known.trouble);
        }
    }
    join_all(next.iter_mut().map(Asked::ask)).await;
    let failed = |(asked, is_new): (&Asked, &bool)| {
        let trouble = asked.trouble.as_ref().filter(|_| *is_new)?;
        Some(format!("discovery by {}: {trouble}", asked.source.kind()))
    };
    let failed = next.iter().zip(&is_new).filter_map(failed).collect();
    (next, failed)
}

impl Asked {
    /// Nothing was said so far.
    fn new(source: Box<dyn Source>) -> Self {
        Asked { source, memory: Memory::default(), listed: Vec::new(), due: Instant::now(), trouble: None }
    }

    async fn ask(&mut self) {
        let kind = self.source.kind();
        let (again, trouble) = match self.source.list(&mut self.memory).await {
            Ok(Listed { specs, again }) => {
                self.memory.is_known = true;
                self.listed = specs.unwrap_or_else(|| std::mem::take(&mut self.listed));
                (again, None)
            }
            Err((trouble, again)) => (again, Some(trouble)),
        };
        self.due = Instant::now() + again;
        if trouble != self.trouble {
            match &trouble {
                Some(why) => log::error!("discovery by {kind}: {why}; {} replicas stay", self.listed.len()),
                None => log::info!("discovery by {kind} works again"),
            }
            self.trouble = trouble;
        }
    }

    async fn renew(&mut self, fleet: &Fleet) {
        self.ask().await;
        self.note(fleet);
    }

    fn note(&self, fleet: &Fleet) {
        fleet.sources().note(self.source.kind(), self.listed.len(), self.trouble.is_some());
    }
}

/// What all sources list, each name once; and the names that two want, of which those in `told` are known.
fn together(sources: &[Asked], told: &[String]) -> (Vec<ReplicaSpec>, Vec<String>) {
    let mut names = HashSet::new();
    let all = sources.iter().flat_map(|asked| &asked.listed);
    let (first, again): (Vec<_>, Vec<_>) = all.partition(|spec| names.insert(spec.name.as_str()));
    let doubles: Vec<_> = again.into_iter().map(|spec| spec.name.clone()).collect();
    for name in doubles.iter().filter(|name| !told.contains(name)) {
        log::error!("replica {name}: a name that another one has; the first one stays");
    }
    (first.into_iter().cloned().collect(), doubles)
}

fn tell(change: &Change) {
    for (names, what) in [(&change.added, "came"), (&change.removed, "left"), (&change.changed, "changed")] {
        if !names.is_empty() {
            log::info!("replicas that {what}: {}", names.join(", "));
        }
    }
}

#[async_trait]
impl BackgroundService for Membership {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        // addresses may have come from the process before this one
        self.state.lock().await.resolve = Instant::now();
        loop {
            let next = self.refresh().await;
            tokio::select! {
                () = tokio::time::sleep_until(next.into()) => {}
                () = self.wake.notified() => {}
                changed = shutdown.changed() => if changed.is_err() || *shutdown.borrow() { return },
            }
        }
    }
}

#[cfg(test)]
mod tests;
