//! Three routers before the same engines, of which each request meets the next: alone, or as one group that tells each
//! other what it learns. What is told arrives as it does by way of a store, one round later, and nothing else is modelled
//! of that.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, sync_channel};

use ramjet::fleet::elsewhere::{Running, RunningElsewhere};
use ramjet::fleet::heard::Heard;
use ramjet::fleet::sharing::Learned;

use super::library::Library;
use super::{Decision, End, First, Knowledge, Request, Rule};

/// How many there are.
pub(super) const ROUTERS: usize = 3;
/// Between two rounds, in ms.
const EVERY: f64 = 50.0;
/// Things that wait for a round at most.
const ROOM: usize = 1 << 16;
/// Any number: all of a group hash names with the same one.
const SECRET: u64 = 7;

/// See the module header.
pub(super) struct Several {
    routers: Vec<Library>,
    /// whom each request has met
    met: HashMap<u64, usize>,
    next: usize,
    group: Vec<Member>,
    due: f64,
}

/// One router in a group.
struct Member {
    told: Receiver<Learned>,
    /// what it told in the last round, and what it had running
    news: (Vec<Learned>, Vec<Running>),
    /// what it has heard from the others
    heard: Vec<(Heard, RunningElsewhere)>,
}

impl Several {
    /// Routers that know nothing of each other.
    pub(super) fn apart(routers: Vec<Library>) -> Self {
        Self { routers, met: HashMap::new(), next: 0, group: Vec::new(), due: 0.0 }
    }

    /// The same as one group.
    pub(super) fn together(routers: Vec<Library>) -> Self {
        let member = |router: &Library| {
            let (out, told) = sync_channel(ROOM);
            let fleet = router.fleet();
            fleet.name_sessions_by(SECRET);
            let is_first = fleet.sharing().to(out, Arc::new(AtomicU64::new(0)));
            debug_assert!(is_first, "a fleet has one group");
            let ear = || (Heard::new(fleet.clone()), RunningElsewhere::new(fleet.clone()));
            Member { told, news: Default::default(), heard: routers.iter().map(|_| ear()).collect() }
        };
        let group = routers.iter().map(member).collect();
        Self { group, ..Self::apart(routers) }
    }

    fn of(&mut self, request: u64) -> &mut Library {
        let at = *self.met.entry(request).or_insert_with(|| {
            self.next += 1;
            self.next % self.routers.len()
        });
        &mut self.routers[at]
    }

    /// What was told one round ago arrives.
    fn pass(&mut self, now: f64) {
        if now < self.due {
            return;
        }
        self.due = now + EVERY;
        self.routers.iter().for_each(|router| router.set(now));
        for from in 0..self.group.len() {
            let running = self.routers[from].fleet().running();
            self.routers[from].fleet().mark();
            let told = self.group[from].told.try_iter().collect();
            let (learned, ran) = std::mem::replace(&mut self.group[from].news, (told, running));
            for to in (0..self.group.len()).filter(|to| *to != from) {
                let (heard, elsewhere) = &mut self.group[to].heard[from];
                learned.iter().cloned().for_each(|learned| heard.take_in(learned));
                elsewhere.replace(ran.clone());
            }
        }
    }
}

impl Rule for Several {
    fn hold_ms(&mut self, request: &Request, know: &Knowledge, now: f64) -> f64 {
        self.pass(now);
        self.of(request.id).hold_ms(request, know, now)
    }

    fn place(&mut self, request: &Request, know: &Knowledge, now: f64) -> Decision {
        self.of(request.id).place(request, know, now)
    }

    fn first_token(&mut self, request: &Request, seen: &First, now: f64) {
        self.pass(now);
        self.of(request.id).first_token(request, seen, now);
    }

    fn end(&mut self, request: &Request, seen: &End, now: f64) {
        self.of(request.id).end(request, seen, now);
        self.met.remove(&request.id);
        self.pass(now);
    }

    fn failed(&mut self, request: &Request, replica: usize, now: f64) {
        self.of(request.id).failed(request, replica, now);
        // whoever has it sends it again, if that can be done
    }

    fn restarted(&mut self, replica: usize, now: f64) {
        self.routers.iter_mut().for_each(|router| router.restarted(replica, now));
    }

    fn booked(&self) -> u64 {
        // what the others have said last does not count
        let own = |router: &Library| -> u32 {
            router.fleet().running().iter().map(|r| r.work().units + r.work().requests()).sum()
        };
        self.routers.iter().map(own).map(u64::from).sum()
    }
}
