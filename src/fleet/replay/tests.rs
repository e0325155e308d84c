//! Whatever happens to a fleet, the same steps lead another one to the same choices.

use super::super::members::Wanted;
use super::super::router::{Next, Placed, Router};
use super::super::selection::backend;
use super::super::testing::spec as named;
use super::*;
use crate::fleet::reservation::Reported;
use crate::policy::hint::{Hint, Source};
use crate::policy::testing::params;
use crate::prefix::fingerprint::{Ends, Place};
use crate::prefix::residency::Served;
use pingora_load_balancing::discovery::Static;
use pingora_load_balancing::{Backends, LoadBalancer};
use proptest::prelude::*;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, sync_channel};

const REPLICAS: u16 = 4;

/// A fleet that tells its steps, from before it had members.
fn world(params: Params) -> (Router, Hand, Receiver<Stage>) {
    let (clock, hand) = Clock::manual();
    let fleet = Arc::new(Fleet::new(Vec::new(), params, 1 << 20).on(clock));
    let (out, stages) = sync_channel(1 << 16);
    fleet.tell(out, Arc::default(), 1 << 20);
    let wanted = (0..REPLICAS).map(|n| Wanted { spec: named(&format!("r{n}")), address: None });
    fleet.change(wanted.collect());
    let members = fleet.replicas().iter().map(|r| backend(r, ([127, 0, 0, 1], 1).into())).collect();
    let balancer = LoadBalancer::from_backends_with_config(Backends::new(Static::new(members)), Some(fleet.clone()));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(balancer.update()).unwrap();
    (Router::new(fleet, Arc::new(balancer)), hand, stages)
}

/// A request that is being served.
struct Open {
    number: u64,
    session: u64,
    turn: u64,
    placed: Placed,
    chain: Arc<[u64]>,
}

fn prompt(number: u64, (session, turn): (u64, u64), chain: &Arc<[u64]>) -> Prompt<'_> {
    let bytes = chain.len() as u64 * 2048 + 100;
    let end = |turn: u64| Place { print: session << 20 | turn, blocks: u32::try_from(10 + turn * 3).unwrap() };
    let source = if session.is_multiple_of(2) { Source::Named } else { Source::Derived };
    Prompt {
        request: number,
        chain,
        ends: Ends { previous: turn.checked_sub(1).map(end), own: Some(end(turn)) },
        body_bytes: bytes,
        prompt_bytes: bytes,
        model: Some(if session < 3 { "m" } else { "n" }),
        streams: !number.is_multiple_of(3),
        session: (session != 5).then_some(Hint { key: session, source }),
        pinned: None,
    }
}

impl Open {
    fn claim(&mut self) -> &mut ClaimGuard {
        match &mut self.placed.next {
            Next::Go(claim) => claim,
            Next::Wait(..) => panic!("nobody is kept back"),
        }
    }

    /// It is answered, with so much from the cache.
    fn end(mut self, router: &Router, cached: f64) {
        let size = self.chain.len() as f64 * 500.0;
        self.placed.reservation.first_token();
        self.claim().confirm();
        self.placed.reservation.shrink();
        router.fleet().learn_model(Some("m"), self.chain.len() as u64 * 2048, self.chain.len() as u64 * 500, Some(40));
        self.claim().answered(size, 40.0);
        let [prompt, from_cache] = [size, size * cached].map(|n| format!("{n:.0}").parse().unwrap());
        self.placed.reservation.learn(Reported { prompt, cached: Some(from_cache), output: Some(40) });
        self.claim().served(Served { prompt: size, cached: size * cached, output: 40.0 });
    }
}

/// Lives through what the numbers say, and returns the choices and the steps.
fn live(params: Params, ops: &[(u8, u64, f64)]) -> (Vec<(u64, ReplicaId)>, Vec<Stage>) {
    let (router, hand, stages) = world(params);
    let (mut open, mut turns, mut chosen, mut now) = (Vec::<Open>::new(), [0u64; 8], Vec::new(), 0.0);
    for (number, (op, pick, time)) in (1u64..).zip(ops) {
        now += time;
        hand.set(now);
        let at = usize::try_from(*pick).unwrap();
        match op {
            0..=3 => {
                let session = pick % 8;
                let turn = turns[at % 8];
                turns[at % 8] += 1;
                let own = (0..turn * 3).map(|n| session << 32 | n << 1 | 1);
                let chain: Arc<[u64]> = (0..10).map(|n| (session % 3) << 48 | n << 1).chain(own).collect();
                let placed = router.place(prompt(number, (session, turn), &chain), 0.0).unwrap();
                chosen.push((number, placed.decision.ranked[0].id));
                open.push(Open { number, session, turn, placed, chain });
            }
            4 | 5 if !open.is_empty() => open.swap_remove(at % open.len()).end(&router, 0.9),
            6 if !open.is_empty() => open.swap_remove(at % open.len()).end(&router, 0.0),
            // it fails, and is tried elsewhere or not
            7 if !open.is_empty() => {
                let failed = open.swap_remove(at % open.len());
                let Open { number, session, turn, placed, chain } = failed;
                let next = placed.decision.ranked[1];
                drop((placed.reservation, placed.next));
                if pick.is_multiple_of(2) {
                    let (reservation, claim) = router.take(next, prompt(number, (session, turn), &chain)).unwrap();
                    let placed = Placed { decision: placed.decision, reservation, next: Next::Go(claim) };
                    open.push(Open { number, session, turn, placed, chain });
                }
            }
            8 => router.fleet().forget(ReplicaId(u16::try_from(pick % 4).unwrap())),
            9 => router.fleet().learn_capacity(ReplicaId(u16::try_from(pick % 4).unwrap()), 30_000),
            _ => {}
        }
    }
    drop(open);
    (chosen, stages.try_iter().collect())
}

fn rules() -> impl Strategy<Value = Params> {
    (prop::sample::select(&PolicyKind::ALL), 0.0f64..6.0, 4u32..40).prop_map(|(policy, alpha, cap_blocks)| {
        let mut rule = params(policy);
        (rule.affinity.alpha, rule.affinity.cap_blocks) = (alpha, cap_blocks);
        rule
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_same_steps_lead_to_the_same_choices(
        params in rules(), other in rules(), ops in prop::collection::vec((0u8..10, 0u64..64, 0.0f64..4000.0), 1..120),
    ) {
        let (chosen, stages) = live(params, &ops);
        let mut again = Vec::new();
        let mut replay = Replay::default();
        stages.iter().cloned().for_each(|stage| replay.step(stage, |choice| again.push(choice)));
        prop_assert_eq!(again.len(), chosen.len());
        for (then, now) in chosen.iter().zip(&again) {
            prop_assert_eq!((then.0, Some(then.1)), (now.request, now.now.map(|went| went.to)));
            prop_assert_eq!(Some(now.then), now.now, "what is expected is expected again");
            prop_assert!(now.saw_the_same);
        }
        // nothing is left but what the last steps did not end, and that was given back when they were over
        prop_assert_eq!(replay.open(), 0);
        prop_assert!(replay.fleet().replicas().iter().all(|r| r.load() == 0 && r.inflight.load(Relaxed) == 0));
        // under other rules every request is placed, too
        let mut replay = Replay::under(Box::new(move |_| other));
        let mut placed = 0;
        stages.into_iter().for_each(|stage| replay.step(stage, |choice| placed += usize::from(choice.now.is_some())));
        prop_assert_eq!((placed, replay.open()), (chosen.len(), 0));
        prop_assert!(replay.fleet().replicas().iter().all(|r| r.load() == 0));
    }
}
