//! Who is to be in the fleet: what all sources say together, brought into force while requests run.
//!
//! A source lists replicas: the configuration, a watched file, DNS. What it said last stands until it says something
//! else, so **a source that fails, or says that there is nobody, empties nothing**. Of two replicas with one name the
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
use std::collections::HashSet;
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

/// Lists replicas.
#[async_trait]
pub trait Source: Send + Sync {
    /// What kind of source it is: a metric label.
    fn kind(&self) -> &'static str;

    /// What tells it from other sources: another one with this text says the same.
    fn place(&self) -> String;

    /// Lists the replicas, or says why it cannot, and when it is to be asked again.
    async fn list(&self) -> Result<Listed, (String, Duration)>;
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

    async fn list(&self) -> Result<Listed, (String, Duration)> {
        Ok(Listed { specs: Some(self.0.clone()), again: RESOLVE_EVERY })
    }
}

/// A source and what it said.
struct Asked {
    source: Box<dyn Source>,
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

    /// Asks these sources from now on, and at once. One that was there before and fails now has said what it said then.
    pub async fn set(&self, sources: Vec<Box<dyn Source>>) -> Change {
        let mut state = self.state.lock().await;
        let mut before = std::mem::take(&mut state.sources);
        for source in sources {
            let same = |asked: &Asked| asked.source.kind() == source.kind() && asked.source.place() == source.place();
            let known = before.iter().position(same).map(|at| before.swap_remove(at));
            let (listed, trouble) = known.map_or_else(Default::default, |asked| (asked.listed, asked.trouble));
            state.sources.push(Asked { source, listed, due: Instant::now(), trouble });
        }
        let kinds = state.sources.iter().map(|asked| asked.source.kind()).collect::<Vec<_>>();
        self.fleet.sources().keep(&kinds);
        let change = self.refresh_all(&mut state).await;
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

    async fn refresh_all(&self, state: &mut State) -> Change {
        let now = Instant::now();
        join_all(state.sources.iter_mut().filter(|asked| asked.due <= now).map(|asked| asked.ask(&self.fleet))).await;
        let wanted = together(state);
        let is_news = wanted != state.applied;
        let mut change = Change::default();
        if is_news {
            let addresses = locate(&wanted, &self.fleet).await;
            let located = wanted.iter().cloned().zip(addresses);
            change = self.fleet.change(located.map(|(spec, address)| Wanted { spec, address }).collect());
            state.applied = wanted;
            tell(&change);
        }
        if is_news || state.resolve <= now {
            state.resolve = now + RESOLVE_EVERY;
            if let Err(e) = self.balancer.update().await {
                log::error!("the balancer's members could not be changed: {e}");
            }
        }
        self.fleet.tidy();
        change
    }
}

impl Asked {
    async fn ask(&mut self, fleet: &Fleet) {
        let kind = self.source.kind();
        let (again, trouble) = match self.source.list().await {
            Ok(Listed { specs, again }) => {
                self.listed = specs.unwrap_or_else(|| std::mem::take(&mut self.listed));
                (again, None)
            }
            Err((trouble, again)) => (again, Some(trouble)),
        };
        self.due = Instant::now() + again;
        fleet.sources().note(kind, self.listed.len(), trouble.is_some());
        if trouble != self.trouble {
            match &trouble {
                Some(why) => log::error!("discovery by {kind}: {why}; {} replicas stay", self.listed.len()),
                None => log::info!("discovery by {kind} works again"),
            }
            self.trouble = trouble;
        }
    }
}

/// What all sources list, each name once.
fn together(state: &mut State) -> Vec<ReplicaSpec> {
    let mut names = HashSet::new();
    let all = state.sources.iter().flat_map(|asked| &asked.listed);
    let (first, again): (Vec<_>, Vec<_>) = all.partition(|spec| names.insert(spec.name.as_str()));
    let doubles: Vec<_> = again.into_iter().map(|spec| spec.name.clone()).collect();
    for name in doubles.iter().filter(|name| !state.doubles.contains(name)) {
        log::error!("replica {name}: a name that another one has; the first one stays");
    }
    let first = first.into_iter().cloned().collect();
    state.doubles = doubles;
    first
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
