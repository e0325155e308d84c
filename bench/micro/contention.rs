//! `ramjet-bench contention`: how many choices a second several threads make together, each with its reservation and its
//! claim, and what the lock that orders them allows at most.
//!
//! Choices are made under one lock, so that of two equal prompts the second one sees where the first one goes; claims and
//! reservations end outside of it. With more threads than processors nothing is gained, so what 32 of them would do on 32
//! processors is worked out: a lock that is held for `h` of the `t` that a whole request takes lets `t / h` processors
//! work at the most, and `n` of them wait as clients of one server do (mean value analysis of a closed system).

use std::sync::Barrier;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use clap::Args;
use ramjet::fleet::router::{Next, Router};
use ramjet::types::PolicyKind;

use super::cases::{fleet, prompt};

/// Choices of several threads at a time.
#[derive(Args, Debug)]
pub(crate) struct ContentionArgs {
    /// threads, one run for each of these
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,32")]
    threads: Vec<usize>,
    /// replicas to choose among
    #[arg(long, default_value_t = 40)]
    replicas: u16,
    /// blocks of a prompt; half of them are known everywhere
    #[arg(long, default_value_t = 64)]
    blocks: u64,
    /// seconds that a run takes
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// microseconds of processor time that a whole request takes, for what is worked out
    #[arg(long, default_value_t = 80.0)]
    request: f64,
}

/// Runs and tells.
pub(crate) fn run(args: &ContentionArgs) -> Result<(), String> {
    let processors = available_parallelism().map_or(1, usize::from);
    println!("{} replicas, {} blocks, {processors} processors", args.replicas, args.blocks);
    println!("threads   choices/s   µs of a thread each   against one thread");
    let mut alone = None;
    for threads in &args.threads {
        let rate = together(args, (*threads).max(1))?;
        let alone = *alone.get_or_insert(rate);
        println!("{threads:>7}   {rate:>9.0}   {:>19.2}   {:>17.2}", *threads as f64 / rate * 1e6, rate / alone);
    }
    let Some(alone) = alone else { return Ok(()) };
    // all of a choice is counted as if it were under the lock
    let held = 1e6 / alone;
    println!("worked out, {held:.1} µs of {} under the lock:", args.request);
    for processors in [2, 8, 32] {
        let rate = closed(processors, held, (args.request - held).max(0.0));
        let most = processors as f64 / args.request.max(held);
        println!("{processors:>7} processors: {:.0} requests/s, {:.2} of what they could", rate * 1e6, rate / most);
    }
    Ok(())
}

/// Choices a second of so many threads.
fn together(args: &ContentionArgs, threads: usize) -> Result<f64, String> {
    let (_fleet, router) = fleet(args.replicas, PolicyKind::Cost);
    let (begin, lasts) = (Barrier::new(threads), Duration::from_secs_f64(args.seconds.clamp(0.01, 3600.0)));
    let worker = |n: u64| {
        begin.wait();
        let began = Instant::now();
        let mut made = 0u64;
        while began.elapsed() < lasts {
            made += u64::from(choose(&router, args.blocks, n << 32 | made));
        }
        made as f64 / began.elapsed().as_secs_f64()
    };
    let rates = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads as u64).map(|n| scope.spawn(move || worker(n))).collect();
        workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Result<Vec<f64>, _>>()
    });
    rates.map(|rates| rates.iter().sum()).map_err(|_| "a thread ended early".to_owned())
}

/// Places a prompt whose second half nobody knows; it is read, answered and over.
fn choose(router: &Router, blocks: u64, own: u64) -> bool {
    let block = |n: u64| (if n < blocks / 2 { n } else { own << 16 | n }).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let chain = (1..=blocks).map(block).collect();
    let Ok(placed) = router.place(prompt(&chain, blocks * 2048), 0.0) else { return false };
    let mut reservation = placed.reservation;
    reservation.first_token();
    if let Next::Go(mut claim) = placed.next {
        claim.confirm();
    }
    true
}

/// Requests per microsecond of `clients` that are served for `service` by one server, one at a time, and are away for
/// `think` in between.
fn closed(clients: usize, service: f64, think: f64) -> f64 {
    let (mut queue, mut rate) = (0.0, 0.0);
    for n in 1..=clients {
        let takes = service * (1.0 + queue);
        rate = n as f64 / (think + takes);
        queue = rate * takes;
    }
    rate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_waits_for_nobody_and_many_for_the_server_alone() {
        assert!((closed(1, 10.0, 70.0) - 1.0 / 80.0).abs() < 1e-12);
        assert!((closed(1000, 10.0, 70.0) - 0.1).abs() < 1e-6);
        assert!(closed(8, 10.0, 70.0) < 0.1 && closed(8, 10.0, 70.0) > closed(7, 10.0, 70.0));
    }

    #[test]
    fn every_thread_makes_choices() {
        let args = ContentionArgs { threads: vec![], replicas: 3, blocks: 8, seconds: 0.05, request: 80.0 };
        assert!(together(&args, 1).unwrap() > 0.0 && together(&args, 3).unwrap() > 0.0);
    }
}
