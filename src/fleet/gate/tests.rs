//! Room is handed on, whatever those do who have it or wait for it.

use super::*;
use crate::types::Priority;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const LONG: Duration = Duration::from_secs(30);
const NONE_YET: Duration = Duration::from_millis(1);

fn gate(inflight: Option<u32>, per_replica: Option<u32>, queue: usize) -> Arc<Gate> {
    Gate::new(Limits { inflight, per_replica, queue }, Clock::default()).unwrap()
}

fn line(session: u64) -> Line {
    Line { priority: Priority::Interactive, session }
}

fn wanted(slots: &[u16]) -> Wanted {
    slots.iter().map(|slot| ReplicaId(*slot)).collect()
}

fn ask(gate: &Arc<Gate>, slots: &[u16], session: u64) -> Entry {
    gate.enter(wanted(slots), line(session), Standing::New)
}

fn permit(entry: Entry) -> Permit {
    match entry {
        Entry::In(_, permit) => permit,
        other => panic!("no room: {other:?}"),
    }
}

fn waiting(entry: Entry) -> Waiting {
    match entry {
        Entry::Wait(waiting) => waiting,
        other => panic!("it does not wait: {other:?}"),
    }
}

/// What is in flight, in all and at each replica, and how many wait.
fn inside(gate: &Gate) -> (u32, Vec<u32>, usize) {
    let state = gate.state.lock();
    let mut at = state.room.at.clone();
    at.resize(3, 0);
    (state.room.inflight, at, state.queue.len())
}

#[test]
fn nothing_is_counted_where_nothing_is_limited() {
    assert!(Gate::new(Limits { queue: 7, ..Limits::default() }, Clock::default()).is_none());
}

#[tokio::test]
async fn the_first_that_has_room_takes_it_and_who_finds_none_waits() {
    let gate = gate(None, Some(1), 1);
    let Entry::In(0, first) = ask(&gate, &[1, 0], 1) else { panic!("there is room") };
    let Entry::In(1, second) = ask(&gate, &[1, 0], 1) else { panic!("there is room") };
    assert_eq!((first.replica(), second.replica()), (ReplicaId(1), ReplicaId(0)));
    let mut third = waiting(ask(&gate, &[1, 0], 1));
    assert!(matches!(ask(&gate, &[1], 2), Entry::Full));
    assert!(third.room(NONE_YET).await.is_none());
    drop(second);
    // nobody who comes now overtakes
    assert!(matches!(ask(&gate, &[0], 2), Entry::Wait(_)));
    assert_eq!(third.room(LONG).await.unwrap().replica(), ReplicaId(0));
    drop((first, third));
    assert_eq!(inside(&gate), (0, vec![0, 0, 0], 0));
}

#[tokio::test]
async fn the_whole_router_has_a_limit_of_its_own() {
    let gate = gate(Some(2), Some(2), 10);
    let held = [permit(ask(&gate, &[0], 1)), permit(ask(&gate, &[1], 1))];
    let mut next = waiting(ask(&gate, &[2], 1));
    drop(held);
    assert_eq!(next.room(LONG).await.unwrap().replica(), ReplicaId(2));
    assert_eq!(inside(&gate), (0, vec![0, 0, 0], 0));
}

#[tokio::test]
async fn who_leaves_hands_on_what_it_was_handed() {
    let gate = gate(None, Some(1), 10);
    let held = permit(ask(&gate, &[0], 1));
    let [gone, told] = [2, 3].map(|session| waiting(ask(&gate, &[0], session)));
    let mut last = waiting(ask(&gate, &[0], 4));
    drop(gone);
    assert_eq!(inside(&gate).2, 2);
    drop(held);
    // it has room and does not know it yet
    assert_eq!(inside(&gate), (1, vec![1, 0, 0], 1));
    drop(told);
    assert_eq!(last.room(LONG).await.unwrap().replica(), ReplicaId(0));
}

#[tokio::test]
async fn room_may_be_exchanged_and_what_is_left_goes_to_the_next() {
    let gate = gate(Some(2), Some(1), 10);
    let (first, _other) = (permit(ask(&gate, &[0], 1)), permit(ask(&gate, &[1], 1)));
    let moved = gate.enter(wanted(&[2, 0]), line(1), Standing::Inside(first));
    let Entry::In(0, moved) = moved else { panic!("it moves") };
    assert_eq!((moved.replica(), inside(&gate)), (ReplicaId(2), (2, vec![0, 1, 1], 0)));
    let Entry::In(1, kept) = gate.enter(wanted(&[1, 2]), line(1), Standing::Inside(moved)) else { panic!("it stays") };
    let mut next = waiting(ask(&gate, &[2], 2));
    // what it has is no use to it any longer
    let again = waiting(gate.enter(wanted(&[1]), line(1), Standing::Inside(kept)));
    let next = next.room(LONG).await.unwrap();
    assert_eq!((next.replica(), inside(&gate)), (ReplicaId(2), (2, vec![0, 1, 1], 1)));
    drop((next, again));
}

#[tokio::test]
async fn room_that_was_exchanged_goes_to_who_waits_for_it() {
    let gate = gate(None, Some(1), 10);
    let held = permit(ask(&gate, &[0], 1));
    let mut next = waiting(ask(&gate, &[0], 2));
    let moved = permit(gate.enter(wanted(&[1, 0]), line(1), Standing::Inside(held)));
    let next = next.room(LONG).await.unwrap();
    assert_eq!((moved.replica(), next.replica()), (ReplicaId(1), ReplicaId(0)));
}

#[tokio::test]
async fn another_look_changes_what_is_waited_for_and_not_the_place() {
    let gate = gate(None, Some(1), 2);
    let (_zero, one) = (permit(ask(&gate, &[0], 1)), permit(ask(&gate, &[1], 1)));
    let first = waiting(ask(&gate, &[0], 2));
    let mut second = waiting(ask(&gate, &[0, 1], 3));
    // a replica that was not there before
    let first = waiting(gate.enter(wanted(&[0, 1]), line(2), Standing::Waiting(first)));
    drop(one);
    assert!(second.room(NONE_YET).await.is_none(), "the place is kept");
    let Entry::In(0, got) = gate.enter(wanted(&[1]), line(2), Standing::Waiting(first)) else { panic!("it has room") };
    assert_eq!(got.replica(), ReplicaId(1));
    let Entry::In(0, _at_once) = gate.enter(wanted(&[2]), line(3), Standing::Waiting(second)) else {
        panic!("there is room elsewhere")
    };
    assert_eq!(inside(&gate), (3, vec![1, 1, 1], 0));
}

#[tokio::test]
async fn who_is_turned_away_comes_again_when_the_queue_is_gone() {
    let gate = gate(None, Some(1), 1000);
    let mut held = permit(ask(&gate, &[0], 1));
    let mut queue: Vec<_> = (0..900).map(|_| waiting(ask(&gate, &[0], 1))).collect();
    let before = gate.retry_after();
    for mut next in queue.drain(..700) {
        drop(held);
        held = next.room(LONG).await.unwrap();
    }
    // far more than ten a second went
    let after = gate.retry_after();
    assert!(before == 60 && after < 60, "{before} {after}");
}

#[tokio::test]
async fn who_takes_turns_goes_when_it_is_time_in_the_order_in_which_they_came() {
    let (clock, hand) = Clock::manual();
    let gate = Gate::of_turns(clock);
    let first = permit(ask(&gate, &[0, 1], 1));
    gate.rest(first.replica(), 100.0);
    drop(first);
    gate.rest(ReplicaId(1), 300.0);
    let [one, two] = [2, 3].map(|session| waiting(ask(&gate, &[0, 1], session)));
    hand.set(99.0);
    let two = waiting(gate.enter(wanted(&[0, 1]), line(3), Standing::Waiting(two)));
    hand.set(100.0);
    // whoever looks first, it is the other one's turn
    let two = waiting(gate.enter(wanted(&[0, 1]), line(3), Standing::Waiting(two)));
    let Entry::In(0, turn) = gate.enter(wanted(&[0, 1]), line(2), Standing::Waiting(one)) else { panic!("its turn") };
    // no time in between
    gate.rest(turn.replica(), 0.0);
    drop(turn);
    let Entry::In(0, last) = gate.enter(wanted(&[0, 1]), line(3), Standing::Waiting(two)) else { panic!("its turn") };
    drop(last);
    assert_eq!(inside(&gate), (0, vec![0, 0, 0], 0));
}

/// Requests at work: at each replica, and in all.
type Busy = Arc<[AtomicU32; 4]>;

/// One of them. Gone before its permit is.
struct AtWork(Busy, usize);

impl AtWork {
    fn begin(busy: &Busy, permit: &Permit, [in_all, at_one]: [u32; 2]) -> AtWork {
        let at = permit.replica().index();
        assert!(busy[at].fetch_add(1, SeqCst) < at_one, "too many at one replica");
        assert!(busy[3].fetch_add(1, SeqCst) < in_all, "too many in all");
        AtWork(busy.clone(), at)
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0[self.1].fetch_sub(1, SeqCst);
        self.0[3].fetch_sub(1, SeqCst);
    }
}

/// What a request does: it waits, patiently or not, works, is placed anew, works again.
async fn play(gate: Arc<Gate>, n: usize, busy: Busy, most: [u32; 2]) {
    let slots: &[u16] = [&[0, 1, 2][..], &[1], &[2, 0], &[0]][n % 4];
    let own = line(n as u64 % 7);
    let mut standing = Standing::New;
    for round in 0..3 {
        let permit = loop {
            match gate.enter(wanted(slots), own, standing) {
                Entry::In(_, permit) => break permit,
                Entry::Full => return,
                Entry::Wait(mut waiting) => {
                    let at_most = if n.is_multiple_of(3) { NONE_YET } else { LONG };
                    standing = match waiting.room(at_most).await {
                        Some(permit) => Standing::Inside(permit),
                        None if n.is_multiple_of(2) => Standing::Waiting(waiting),
                        None => return,
                    };
                }
            }
        };
        let at_work = AtWork::begin(&busy, &permit, most);
        tokio::task::yield_now().await;
        drop(at_work);
        if round == 0 && n.is_multiple_of(5) {
            let Entry::In(_, permit) = gate.enter(wanted(&[2, 1]), own, Standing::Inside(permit)) else { return };
            let _at_work = AtWork::begin(&busy, &permit, most);
            tokio::task::yield_now().await;
        }
        standing = Standing::Returning;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wake_up_is_lost_and_no_limit_is_passed() {
    for round in 0..40 {
        let (inflight, per_replica) = [(None, Some(2)), (Some(3), None), (Some(3), Some(2))][round % 3];
        let gate = gate(inflight, per_replica, 150);
        let busy = Busy::default();
        let most = [inflight, per_replica].map(|limit| limit.unwrap_or(u32::MAX));
        let tasks: Vec<_> = (0..200)
            .map(|n| {
                let task = tokio::spawn(play(gate.clone(), n, busy.clone(), most));
                // clients leave at whatever moment
                if (n + round).is_multiple_of(11) {
                    task.abort();
                }
                task
            })
            .collect();
        for task in tasks {
            match tokio::time::timeout(LONG, task).await.expect("somebody waits for ever") {
                Ok(()) => {}
                Err(e) => assert!(e.is_cancelled(), "{e}"),
            }
        }
        assert_eq!(inside(&gate), (0, vec![0, 0, 0], 0), "round {round}");
    }
}
