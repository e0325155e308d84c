//! Two engines with their fronts, the real router before them, and somebody who looks at its `/health` all the time.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::front::Front;
use crate::engine::Fleet;
use crate::engine::params::Params;
use crate::load::client::{Client, authority};
use crate::router::Router;

/// How often the router is asked how its replicas are.
const LOOK: Duration = Duration::from_millis(20);

/// A moment at which a replica was seen to come into another state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) at: Instant,
    pub(crate) replica: usize,
    /// why it is fenced, if it is
    pub(crate) fence: Option<String>,
}

/// Everything that runs. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) engines: Fleet,
    pub(crate) fronts: Vec<Front>,
    pub(crate) router: Router,
    moves: Arc<Mutex<Vec<Move>>>,
    _tasks: JoinSet<()>,
}

impl Stage {
    /// Starts `count` engines and a router that serves their model, with what `health` says instead of the defaults.
    pub(crate) async fn set(program: &Path, count: u16, params: &Params, health: Value) -> Result<Self, String> {
        let engines = Fleet::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), count, "sim", params).await?;
        let mut fronts = Vec::new();
        for engine in &engines.engines {
            fronts.push(Front::start(engine.address).await?);
        }
        let replica = |front: &Front| json!({"url": format!("http://{}", front.address), "models": [params.model]});
        let replicas: Vec<Value> = fronts.iter().map(replica).collect();
        let router = Router::configured(program, json!({"fleet": {"replicas": replicas}, "health": health})).await?;
        let moves: Arc<Mutex<Vec<Move>>> = Arc::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(look(authority(&router.url())?.to_owned(), usize::from(count), Arc::clone(&moves)));
        Ok(Self { engines, fronts, router, moves, _tasks: tasks })
    }

    /// Changes of state so far.
    pub(crate) fn moves(&self) -> Vec<Move> {
        self.moves.lock().clone()
    }

    /// When `replica` came into (`fenced`) or out of a fence first after `since`; `None` if it does not within `limit`.
    pub(crate) async fn turned(&self, replica: usize, fenced: bool, since: Instant, limit: Duration) -> Option<Move> {
        let end = Instant::now() + limit;
        let is_it = |m: &Move| m.replica == replica && m.at >= since && m.fence.is_some() == fenced;
        loop {
            let found = self.moves.lock().iter().find(|m| is_it(m)).cloned();
            if found.is_some() || Instant::now() >= end {
                return found;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

async fn look(host: String, count: usize, moves: Arc<Mutex<Vec<Move>>>) {
    let mut last: Vec<Option<String>> = vec![None; count];
    let mut client = Client::default();
    loop {
        if let Ok(body) = client.get(&host, "/health").await {
            let page: Value = serde_json::from_slice(&body).unwrap_or_default();
            for (replica, last) in last.iter_mut().enumerate() {
                let fence = page["replicas"][replica]["fence"].as_str().map(str::to_owned);
                if fence != *last {
                    moves.lock().push(Move { at: Instant::now(), replica, fence: fence.clone() });
                    *last = fence;
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
