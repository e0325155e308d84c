//! Many routers, one mind: the routers of a group tell each other what they learn, by way of a store that they share (Valkey or
//! Redis). Off unless it is configured; then nothing of this runs and a request pays a look at an empty cell.
//!
//! - `keys`: a secret of the group makes the hashes that names and prompts go by, and seals what is written;
//! - `wire`: what is written, and the bounds of what is believed;
//! - `orders`: whose word counts when operators have spoken to several routers;
//! - `peers`: the other routers, and what they have here;
//! - `desk`: what goes out and comes in, round by round, of which `round` is one;
//! - `store`: the connection.
//!
//! What is told: claims on the prefix index and what became of them (so that all believe the same of every cache), where
//! sessions are at home, which replica keeps what it gave an id to, what runs where, learned speeds, fences, and drains. A
//! fence has the others probe at once; it fences nobody there. Nothing is told of a prompt but the hashes of its
//! blocks, and those to nobody but the group.
//!
//! **Architecture invariant: no request waits for the store.** A request leaves what it has learned in a bounded channel. One
//! task empties it every [`EVERY`], and sooner where few routers have something to tell, and takes in what others have told by
//! the same ways by which this process learns from its own requests. A store that is slow, full, gone or lying costs hit rate.
//!
//! A push over a blocking read was considered and refused: it needs a second connection and saves a few milliseconds of what
//! a turn of a conversation takes seconds for.

pub mod desk;
pub mod keys;
pub mod names;
pub mod orders;
pub mod peers;
pub mod round;
pub mod store;
pub mod wire;

use crate::fleet::Fleet;
use crate::fleet::sharing::Group;
use crate::telemetry::metrics::Metrics;
use async_trait::async_trait;
use desk::Desk;
use keys::{Keys, Rejected};
use parking_lot::Mutex;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, SystemTime};
use store::{Failed, Site, Store};
use tokio::sync::watch;
use tokio::time::Instant;

/// How often there is a round, at least.
pub const EVERY: Duration = Duration::from_millis(25);
/// How soon there is another one when something was learned, for each router that reads it: what all of them write all of them
/// read, so that the work grows with the square of their number.
const SOON: Duration = Duration::from_micros(2500);
/// How often it is looked whether something was.
const LOOK: Duration = Duration::from_millis(5);
/// Things that wait for a round at most.
const ROOM: usize = 1 << 13;
/// How soon the store is looked for again after it has failed, at first and at last.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The longest that a router which begins reads what is there before it serves.
const WARM_UP: Duration = Duration::from_secs(2);

/// A group to belong to.
#[derive(Clone)]
pub struct Membership {
    /// Where the store is.
    pub site: Site,
    /// The keys of the group.
    pub keys: Keys,
    /// What the stream may take there, in bytes.
    pub memory: usize,
    /// Whether this router knows what one before it knew.
    pub knows: bool,
    /// What processes before it called themselves, if they have not ended.
    pub before: Vec<u64>,
}

/// The service that keeps a router in its group.
pub struct Cluster {
    fleet: Arc<Fleet>,
    metrics: Arc<Metrics>,
    membership: Membership,
    me: u64,
    /// Taken when the service begins: a daemon forks before that.
    desk: Mutex<Option<Desk>>,
    /// Whether what is there has been read, or was waited for long enough.
    warm: watch::Sender<bool>,
}

impl Cluster {
    /// Of the router whose fleet this is. From now on the fleet tells of what it learns.
    pub fn new(fleet: Arc<Fleet>, metrics: Arc<Metrics>, membership: Membership) -> Self {
        let (out, told) = sync_channel(ROOM);
        let lost = Arc::new(AtomicU64::new(0));
        let is_first = fleet.sharing().to(out, lost.clone());
        debug_assert!(is_first, "a fleet has one group");
        fleet.sharing().set_group(Group::default());
        fleet.name_sessions_by(membership.keys.fingerprints());
        // from the seed that the standard library draws for its maps
        let me = RandomState::new().hash_one(std::process::id());
        let desk = Desk::new((fleet.clone(), membership.keys.clone(), me), (told, lost), membership.memory);
        let desk = desk.following(membership.before.clone());
        Cluster { fleet, metrics, membership, me, desk: Mutex::new(Some(desk)), warm: watch::Sender::new(false) }
    }

    /// Becomes true when this router knows what the group knows, or has waited for that long enough.
    pub fn warm(&self) -> watch::Receiver<bool> {
        self.warm.subscribe()
    }

    /// What this router calls itself.
    pub fn me(&self) -> u64 {
        self.me
    }

    fn now(&self) -> f64 {
        self.fleet.clock().now()
    }

    /// Looks for the store, for ever.
    async fn run(&self, mut desk: Desk) {
        let (mut pause, mut was_there) = (AGAIN.0, true);
        loop {
            let begun = Instant::now();
            let connecting = Box::pin(Store::connect(&self.membership.site, self.me));
            let why = match self.meanwhile(&mut desk, connecting).await {
                Ok((store, end)) => {
                    log::info!("the store of the group answers");
                    was_there = true;
                    desk.connected(end, self.membership.knows);
                    Box::pin(self.serve(store, &mut desk)).await
                }
                Err(why) => why,
            };
            if std::mem::take(&mut was_there) {
                log::warn!("the store of the group is of no use, this router goes on alone: {why}");
            }
            pause = if begun.elapsed() > AGAIN.1 { AGAIN.0 } else { (pause * 2).min(AGAIN.1) };
            let until = Instant::now() + pause.mul_f64(0.5 + self.draw());
            while Instant::now() < until {
                self.account(&mut desk, false);
                tokio::time::sleep(EVERY.min(until - Instant::now())).await;
            }
        }
    }

    /// Goes round after round until the store fails.
    async fn serve(&self, mut store: Store, desk: &mut Desk) -> Failed {
        loop {
            let begun = Instant::now();
            let unix = unix();
            let out = desk.outgoing(self.now(), unix);
            let round = Box::pin(store.round(out, unix));
            let mut incoming = match self.meanwhile(desk, round).await {
                Ok(incoming) => incoming,
                Err(why) => return why,
            };
            let takes_nothing = incoming.takes_nothing.take();
            let has_more = desk.incoming(incoming, self.now(), unix);
            self.account(desk, takes_nothing.is_none());
            if desk.has_caught_up() && !*self.warm.borrow() {
                self.warm.send_replace(true);
            }
            // what there is to be read is read before
            if let Some(why) = takes_nothing.filter(|_| !has_more) {
                return why;
            }
            if has_more {
                // others run here, too
                tokio::task::yield_now().await;
            } else {
                self.pause(desk, begun).await;
            }
        }
    }

    /// Until the next round.
    async fn pause(&self, desk: &mut Desk, begun: Instant) {
        let peers = self.fleet.sharing().group().map_or(0, |group| group.peers);
        let latest = begun + EVERY;
        let mut until = begun + SOON * u32::try_from(peers + 1).unwrap_or(u32::MAX).min(10);
        while until < latest {
            tokio::time::sleep_until(until).await;
            if desk.has_news(self.now()) {
                return;
            }
            until += LOOK;
        }
        tokio::time::sleep_until(latest).await;
    }

    /// Waits for the store. Who falls silent meanwhile is gone all the same.
    async fn meanwhile<T>(&self, desk: &mut Desk, mut answer: impl Future<Output = T> + Unpin) -> T {
        loop {
            match tokio::time::timeout(EVERY, &mut answer).await {
                Ok(answer) => return answer,
                Err(_) => desk.wait(self.now()),
            }
        }
    }

    fn account(&self, desk: &mut Desk, is_connected: bool) {
        desk.pass(is_connected, (self.now(), unix()));
        let counts = desk.take_counts();
        self.metrics.cluster_moved(counts.published, counts.received, counts.lost);
        for (why, count) in Rejected::ALL.iter().zip(counts.rejected).filter(|(_, count)| *count > 0) {
            self.metrics.cluster_rejected(why.label(), count);
        }
        counts.lags_ms.iter().for_each(|ms| self.metrics.cluster_lagged(ms / 1000.0));
    }

    /// From 0 to 1.
    fn draw(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "chance needs no more than 53 bits")]
        let drawn = RandomState::new().hash_one(self.me) as f64;
        drawn / 2f64.powi(64)
    }
}

/// Milliseconds since 1970.
fn unix() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

#[async_trait]
impl BackgroundService for Cluster {
    /// Goes on while requests finish: the others are to know of them. It ends with the process.
    async fn start(&self, _: ShutdownWatch) {
        let Some(desk) = self.desk.lock().take() else { return };
        let late = async {
            tokio::time::sleep(WARM_UP).await;
            self.warm.send_replace(true);
            std::future::pending::<()>().await;
        };
        tokio::join!(Box::pin(self.run(desk)), late);
    }
}
