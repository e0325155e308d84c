//! The simulator's own promises: nothing gets lost, seeds decide, warm beats cold, and the oracle is worth its name.

use super::*;
use crate::sim::measure::Row;
use crate::sim::rule;
use crate::sim::workload;

struct Nobody;

impl Clients for Nobody {
    fn start(&self) -> Vec<(f64, usize)> {
        Vec::new()
    }

    fn wake(&mut self, _: usize, _: &mut Vec<Ask>) {}

    fn answered(&mut self, _: usize, _: bool) -> Option<f64> {
        None
    }
}

/// One client who asks the same twice, the second time alone.
struct Twice(u32);

impl Clients for Twice {
    fn start(&self) -> Vec<(f64, usize)> {
        vec![(0.0, 0)]
    }

    fn wake(&mut self, _: usize, out: &mut Vec<Ask>) {
        let mut prompt = crate::sim::content::Text::default();
        prompt.push(1, 40_000);
        out.push(Ask { session: 0, named: true, prompt, answer: (2, 10) });
    }

    fn answered(&mut self, _: usize, _: bool) -> Option<f64> {
        self.0 += 1;
        (self.0 < 2).then_some(1000.0)
    }
}

/// Keeps every request back for half a second, once.
struct Patient(Box<dyn Rule>, bool);

impl Rule for Patient {
    fn hold_ms(&mut self, _: &Request, _: &Knowledge, _: f64) -> f64 {
        self.1 = !self.1;
        if self.1 { 500.0 } else { 0.0 }
    }

    fn place(&mut self, request: &Request, know: &Knowledge, now: f64) -> Decision {
        self.0.place(request, know, now)
    }

    fn end(&mut self, request: &Request, seen: &End, now: f64) {
        self.0.end(request, seen, now);
    }

    fn failed(&mut self, request: &Request, replica: usize, now: f64) {
        self.0.failed(request, replica, now);
    }

    fn booked(&self) -> u64 {
        self.0.booked()
    }
}

fn short(name: &str) -> Workload {
    let workload = Workload::named(name, true).unwrap();
    Workload {
        warm_up: 20e3,
        watch: 40e3,
        faults: workload.faults.iter().map(|f| (10e3, f.1, f.2)).collect(),
        ..workload
    }
}

fn world<'a>(workload: &'a Workload, name: &str, seed: u64) -> World<'a> {
    let rule = rule::build(name, &workload.caches()).unwrap();
    World::new(workload, rule, workload.clients(seed))
}

fn row(workload: &Workload, name: &str, seed: u64) -> Row {
    world(workload, name, seed).run().row(workload.watch)
}

#[test]
fn every_request_ends_once_and_loads_return_to_zero() {
    for workload in ["fanout", "restart", "flush"].map(short) {
        for name in rule::ALL {
            let mut world = world(&workload, name, 1);
            world.run();
            world.clients = Box::new(Nobody);
            world.events.retain(|Reverse((_, event))| !matches!(event, Event::Client(_)));
            world.run_until(f64::MAX);
            assert!(world.started > 100, "{} under {name}: {}", workload.name, world.started);
            assert_eq!(world.started, world.ended, "{} under {name}", workload.name);
            assert_eq!(world.rule.booked(), 0, "{} under {name}", workload.name);
            for engine in &world.engines {
                let stats = engine.stats();
                assert_eq!((stats.running, stats.waiting, stats.kv_held), (0, 0, 0), "{} under {name}", workload.name);
            }
        }
    }
}

#[test]
fn the_seed_decides_everything() {
    let workload = short("chat");
    for name in ["relative", "oracle_future"] {
        assert_eq!(row(&workload, name, 1), row(&workload, name, 1));
        assert_ne!(row(&workload, name, 1), row(&workload, name, 2));
    }
}

#[test]
fn a_warm_engine_answers_faster() {
    let workload = Workload { warm_up: 0.0, ..short("agents-2-few") };
    let rule = rule::build("sticky", &[4_900_000; 2]).unwrap();
    let tally = World::new(&workload, rule, Box::new(Twice(0))).run();
    let [cold, warm] = tally.ttft_ms[..] else { panic!("{} answers", tally.ttft_ms.len()) };
    // 40 000 tokens at 8000 a second
    assert!((5000.0..5100.0).contains(&cold), "{cold}");
    assert!(warm < 100.0, "{warm}");
    assert_eq!(tally.cached_tokens, tally.reusable_tokens);
}

#[test]
fn time_that_a_request_is_kept_back_counts() {
    let workload = Workload { warm_up: 0.0, ..short("agents-2-few") };
    let waits = |rule| World::new(&workload, rule, Box::new(Twice(0))).run().ttft_ms;
    let sticky = || rule::build("sticky", &[4_900_000; 2]).unwrap();
    let (now, later) = (waits(sticky()), waits(Box::new(Patient(sticky(), false))));
    assert_eq!(later, now.iter().map(|ttft| ttft + 500.0).collect::<Vec<_>>());
}

#[test]
fn an_idle_fleet_is_forecast_exactly() {
    let workload = Workload { warm_up: 0.0, ..short("agents-2-few") };
    let rule = rule::build("oracle_ttft", &[4_900_000; 2]).unwrap();
    let row = World::new(&workload, rule, Box::new(Twice(0))).run().row(workload.watch);
    assert!(row.mistimed < 0.01 && row.mistaken == 0.0, "{row:?}");
}

#[test]
fn no_rule_beats_the_oracle_by_more_than_noise() {
    let workload = Workload { warm_up: 60e3, watch: 120e3, ..short("agents-2-few") };
    let seeds = 1..5;
    let turns = |name: &str| seeds.clone().map(|seed| row(&workload, name, seed).per_minute).sum::<f64>();
    let best = |oracle: bool| {
        let of = rule::ALL.into_iter().filter(|name| rule::is_oracle(name) == oracle);
        of.map(turns).fold(0.0, f64::max)
    };
    assert!(best(true) > 0.97 * best(false), "{} {}", best(true), best(false));
}

#[test]
fn first_tokens_come_about_as_early_as_to_the_oracle_that_picks_the_earliest() {
    for (name, seeds) in [("decode", 3..5), ("one-small", 5..9)] {
        let workload = Workload::named(name, false).unwrap();
        let p95 = |rule| seeds.clone().map(|seed| row(&workload, rule, seed).ttft_p95_s).sum::<f64>();
        let [cost, oracle] = ["cost", "oracle_ttft"].map(p95);
        assert!(cost < 1.1 * oracle, "{name}: {cost} {oracle}");
    }
}

#[test]
fn sessions_that_do_not_all_fit_do_not_spoil_every_cache() {
    for name in ["tight-caches", "small-caches"] {
        let workload = Workload::named(name, false).unwrap();
        let [cost, others @ ..] = ["cost", "least_loaded", "oracle_whole"].map(|rule| row(&workload, rule, 1));
        for other in others {
            assert!(cost.per_minute > 3.0 * other.per_minute, "{cost:?} {other:?}");
            assert!(cost.ttft_p95_s < other.ttft_p95_s && cost.longest_s < 4.0 * other.longest_s, "{cost:?} {other:?}");
        }
    }
}

#[test]
fn every_workload_runs() {
    for name in workload::ALL.into_iter().filter(|name| !["agents-40", "agents-100"].contains(name)) {
        assert!(row(&short(name), "relative", 1).per_minute > 0.0, "{name}");
    }
}
