//! Sources that come, go and fail, and what becomes of the members.

use super::*;
use crate::engine::discovery::Configured;
use crate::fleet::testing::spec;
use crate::policy::health::Thresholds;
use crate::policy::testing::params;
use crate::types::PolicyKind;
use pingora_load_balancing::Backends;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

type Says = Arc<parking_lot::Mutex<Result<Vec<&'static str>, &'static str>>>;

/// Says what the test says, and notes in its memory that it was asked.
struct Scripted {
    place: &'static str,
    says: Says,
    asked: Arc<parking_lot::Mutex<Vec<bool>>>,
}

#[async_trait]
impl Source for Scripted {
    fn kind(&self) -> &'static str {
        "scripted"
    }

    fn place(&self) -> String {
        self.place.to_owned()
    }

    async fn list(&self, memory: &mut Memory) -> Result<Listed, (String, Duration)> {
        let before = memory.families.insert("h".to_owned(), [true, false]);
        self.asked.lock().push(before.is_some());
        let specs = self.says.lock().clone().map_err(|why| (why.to_owned(), Duration::from_secs(60)))?;
        let here = |name: &&str| ReplicaSpec { host: "127.0.0.1".to_owned(), ..spec(name) };
        Ok(Listed { specs: Some(specs.iter().map(here).collect()), again: Duration::from_secs(60) })
    }
}

struct Stage {
    fleet: Arc<Fleet>,
    membership: Membership,
    says: Says,
    asked: Arc<parking_lot::Mutex<Vec<bool>>>,
    committed: AtomicBool,
}

impl Stage {
    fn new() -> Stage {
        let fleet = Arc::new(Fleet::new(Vec::new(), params(PolicyKind::Cost), 1 << 20));
        let thresholds = || Thresholds { failures: 1, successes: 1 };
        let backends = Backends::new(Box::new(Configured::new(fleet.clone(), thresholds)));
        let balancer = Arc::new(LoadBalancer::from_backends_with_config(backends, Some(fleet.clone())));
        let membership = Membership::new(fleet.clone(), balancer);
        let (says, asked) = (Arc::new(parking_lot::Mutex::new(Ok(vec!["a", "b"]))), Arc::default());
        Stage { fleet, membership, says, asked, committed: AtomicBool::new(false) }
    }

    fn source(&self, place: &'static str) -> Vec<Box<dyn Source>> {
        vec![Box::new(Scripted { place, says: self.says.clone(), asked: self.asked.clone() })]
    }

    async fn exchange(&self, place: &'static str) -> Result<Change, Vec<String>> {
        self.committed.store(false, Relaxed);
        self.membership.exchange(self.source(place), || self.committed.store(true, Relaxed)).await
    }

    fn names(&self) -> Vec<String> {
        self.fleet.members().iter().map(|r| r.name().to_owned()).collect()
    }
}

#[tokio::test]
async fn a_new_source_that_fails_changes_nothing_and_one_that_is_known_keeps_what_it_said() {
    let stage = Stage::new();
    stage.membership.begin(stage.source("here")).await;
    assert_eq!(stage.names(), ["a", "b"]);
    *stage.says.lock() = Err("down");
    assert_eq!(stage.exchange("elsewhere").await, Err(vec!["discovery by scripted: down".to_owned()]));
    assert_eq!((stage.names(), stage.committed.load(Relaxed)), (vec!["a".to_owned(), "b".to_owned()], false));
    // the one that was there is still asked, and known
    assert_eq!(stage.exchange("here").await, Ok(Change::default()));
    assert_eq!((stage.names().len(), stage.committed.load(Relaxed)), (2, true));
    assert_eq!(*stage.asked.lock(), [false, false, true], "what it remembers goes along");
    *stage.says.lock() = Ok(Vec::new());
    assert!(stage.exchange("nowhere").await.is_err_and(|why| why[0].contains("nobody would be left")));
    assert_eq!((stage.names().len(), stage.committed.load(Relaxed)), (2, false));
    *stage.says.lock() = Ok(vec!["b", "c"]);
    let change = stage.exchange("elsewhere").await.unwrap();
    assert_eq!((change.added, change.removed), (vec!["c".to_owned()], vec!["a".to_owned()]));
    assert!(stage.committed.load(Relaxed) && stage.names() == ["b", "c"]);
}

#[tokio::test]
async fn the_first_sources_need_not_answer_yet() {
    let stage = Stage::new();
    *stage.says.lock() = Err("down");
    stage.membership.begin(stage.source("here")).await;
    assert!(stage.names().is_empty());
    *stage.says.lock() = Ok(vec!["a"]);
    assert!(stage.exchange("here").await.is_ok());
    assert_eq!(stage.names(), ["a"]);
}
