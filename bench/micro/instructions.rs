//! `ramjet-bench instructions`: how many instructions the steps of the request path take, compared with a file.
//!
//! A count is the same on any machine, however busy, so a slow-down is seen that no clock would show. Each case runs in a
//! process of its own under valgrind's callgrind, which counts inside of [`measured`] alone: one thread, fixed bodies, and
//! no hashing on the way that is seeded by chance. Counts depend on the compiler, on the C library and on what the
//! processor can do; the file says which they are of, and where these differ nothing is compared.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use clap::Args;
use ramjet::api::answer::{StreamReader, WholeReader};
use ramjet::api::compat::Compat;
use ramjet::api::endpoint::Endpoint;
use ramjet::api::sse::Scanner;
use ramjet::fleet::claim::ClaimGuard;
use ramjet::prefix::index::PrefixIndex;
use ramjet::proxy::prepare;
use ramjet::types::{PolicyKind, ReplicaId};
use serde_json::{Value, json};

use super::cases::{EVENT, RULES, SHAPE, SIZE, conversation, fleet, linted, prompt, warm};

/// A count may grow by this before it is a failure, in parts of the one in the file.
const ALLOWED: f64 = 0.03;

/// And by so many instructions whatever it was: how a compiler keeps a few values in registers changes with code elsewhere,
/// and of a count of some dozens that is more than `ALLOWED`.
const GRAIN: f64 = 8.0;

/// Counts of instructions.
#[derive(Args, Debug)]
pub(crate) struct InstructionsArgs {
    /// the counts that are known
    #[arg(long, default_value = "bench/instructions.json")]
    file: PathBuf,
    /// write the file anew
    #[arg(long)]
    write: bool,
    /// do this many per cent of the work once more, to see that it is found
    #[arg(long, default_value_t = 0)]
    planted: u32,
    /// these cases only, with commas between them
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// run one case: what is counted
    #[arg(long, hide = true)]
    case: Option<String>,
}

/// Instructions of one run of each case.
type Counts = BTreeMap<String, u64>;

/// A case: how often it runs to be counted, and how it is set up.
type Case = (&'static str, u32, fn() -> Box<dyn FnMut()>);

const CASES: [Case; 15] = [
    ("prepare_1_KiB", 400, || prepared(1, false, RULES)),
    ("prepare_64_KiB", 20, || prepared(64, false, RULES)),
    ("prepare_512_KiB", 4, || prepared(512, false, RULES)),
    ("edit_64_KiB", 20, || prepared(64, true, RULES)),
    ("walk_512_blocks_40_replicas", 40, || walked(40)),
    ("walk_512_blocks_256_replicas", 40, || walked(256)),
    ("place_affinity_1_MiB_40_replicas", 20, || placed(PolicyKind::Affinity, 40)),
    ("place_cost_1_MiB_40_replicas", 20, || placed(PolicyKind::Cost, 40)),
    ("place_cost_1_MiB_256_replicas", 10, || placed(PolicyKind::Cost, 256)),
    ("claim_512_blocks", 20, claimed),
    ("lint_a_turn_that_is_held", 2000, || linted(0.97)),
    ("lint_a_prompt_that_nobody_holds", 2000, || linted(0.0)),
    ("scan_event", 2000, || {
        let mut scanner = Scanner::default();
        Box::new(move || scanner.push(black_box(EVENT), |event| _ = black_box(event)))
    }),
    ("read_event", 2000, || {
        let mut reader = StreamReader::default();
        Box::new(move || _ = black_box(reader.push(black_box(EVENT))))
    }),
    ("read_answer_4_KB", 200, answered),
];

fn prepared(kib: usize, parts: bool, rules: Compat) -> Box<dyn FnMut()> {
    let body = conversation(kib << 10, parts);
    Box::new(move || drop(black_box(prepare(Endpoint::Chat, black_box(&body), &SHAPE, rules))))
}

fn walked(replicas: u16) -> Box<dyn FnMut()> {
    let chain = chain(512);
    let mut index = PrefixIndex::new(64 << 20);
    for n in 0..replicas {
        index.hold(&chain[..chain.len() * usize::from(1 + n % 8) / 8], ReplicaId(n), 1);
    }
    let mut overlaps = vec![0; usize::from(replicas)];
    Box::new(move || drop(black_box(index.walk(black_box(&chain), &mut overlaps))))
}

fn placed(policy: PolicyKind, replicas: u16) -> Box<dyn FnMut()> {
    let (fleet, router) = fleet(replicas, policy);
    let body = conversation(1 << 20, false);
    let chain = warm(&fleet, replicas, &body);
    Box::new(move || drop(black_box(router.place(black_box(prompt(&chain, body.len() as u64)), 0.0))))
}

fn claimed() -> Box<dyn FnMut()> {
    let (fleet, _) = fleet(40, PolicyKind::Affinity);
    let mut next = 0;
    let mut chain = chain(513);
    Box::new(move || {
        next += 1;
        chain[512] = next;
        ClaimGuard::new(&fleet, &Arc::from(&chain[..]), SIZE, ReplicaId(3)).confirm();
    })
}

fn answered() -> Box<dyn FnMut()> {
    let text =
        [r#"{"id":"x","choices":[{"message":{"content":""#, &"w".repeat(4000), r#""}}],"usage":{"prompt_tokens":9}}"#];
    let text = text.concat();
    Box::new(move || {
        let mut reader = WholeReader::default();
        reader.push(black_box(text.as_bytes()));
        _ = black_box(reader.usage());
    })
}

fn chain(blocks: u64) -> Vec<u64> {
    (1..=blocks).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

/// What is counted, and nothing else.
#[inline(never)]
fn measured(run: &mut dyn FnMut(), times: u32) {
    for _ in 0..times {
        run();
    }
}

/// Counts and compares, or writes.
pub(crate) fn run(args: &InstructionsArgs) -> Result<(), String> {
    if let Some(name) = &args.case {
        return run_one(name, args.planted);
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("instructions: SKIPPED, valgrind is not installed");
        return Ok(());
    }
    let (shown, made_with) = (args.file.display(), made_with()?);
    if args.write {
        let text = format!("{:#}\n", json!({"made_with": made_with, "instructions": count(args)?}));
        return std::fs::write(&args.file, text).map_err(|error| format!("{shown}: {error}"));
    }
    let text = std::fs::read_to_string(&args.file).map_err(|error| format!("{shown}: {error}"))?;
    let known: Value = serde_json::from_str(&text).map_err(|error| format!("{shown}: {error}"))?;
    if known["made_with"] != made_with {
        println!(
            "instructions: SKIPPED, {shown} is of {}, this is {made_with}. Write it anew (instructions --write) with \
             code that is known to be good, and commit it",
            known["made_with"]
        );
        return Ok(());
    }
    let counts = known["instructions"].as_object().into_iter().flatten();
    let known = counts.filter_map(|(name, count)| Some((name.clone(), count.as_u64()?))).collect();
    let (text, slower) = compare(&known, &count(args)?);
    print!("{text}");
    if slower.is_empty() { Ok(()) } else { Err(format!("more instructions than allowed: {}", slower.join(", "))) }
}

/// What valgrind looks at.
fn run_one(name: &str, planted: u32) -> Result<(), String> {
    let (_, times, set_up) = CASES.iter().find(|case| case.0 == name).ok_or_else(|| format!("{name}: no case"))?;
    let mut run = set_up();
    // what is made at first only is not counted
    run();
    measured(&mut *run, times + (times * planted).div_ceil(100));
    Ok(())
}

/// All counts as lines, and what takes more than is allowed or has no count in the file.
fn compare(known: &Counts, now: &Counts) -> (String, Vec<String>) {
    let (mut text, mut slower) = (String::new(), Vec::new());
    for (name, count) in now {
        let Some(before) = known.get(name) else {
            slower.push(format!("{name} (not in the file)"));
            continue;
        };
        let more = *count as f64 - *before as f64;
        let change = more / (*before).max(1) as f64;
        text.push_str(&format!("{name:36} {count:>12} {:>+7.2} %\n", change * 100.0));
        if change > ALLOWED && more > GRAIN {
            slower.push(format!("{name} {:+.1} %", change * 100.0));
        }
        if change < -ALLOWED {
            text.push_str(&format!("{name}: fewer; --write keeps what was gained\n"));
        }
    }
    (text, slower)
}

fn count(args: &InstructionsArgs) -> Result<Counts, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let wanted = CASES.iter().filter(|(name, ..)| args.only.is_empty() || args.only.iter().any(|only| only == name));
    let count = |(name, times, _): &Case| {
        Ok(((*name).to_owned(), count_one(&program, name, args.planted)? / u64::from(*times)))
    };
    wanted.map(count).collect()
}

fn count_one(program: &Path, name: &str, planted: u32) -> Result<u64, String> {
    let out = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg("--toggle-collect=*instructions::measured*")
        .arg(program)
        .args(["instructions", "--case", name, "--planted", &planted.to_string()])
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&out.stderr);
    let found =
        said.lines().find_map(|line| line.split_once("Collected : ")?.1.split_whitespace().next()?.parse().ok());
    found.filter(|count| *count > 0 && out.status.success()).ok_or_else(|| format!("{name}: valgrind says {said}"))
}

/// What counts depend on.
fn made_with() -> Result<String, String> {
    let line = |program: &str, word: &str| {
        let out = Command::new(program).arg(word).output().map_err(|error| format!("{program}: {error}"))?;
        let text = String::from_utf8_lossy(&out.stdout);
        Ok::<_, String>(text.lines().next().unwrap_or_default().trim().to_owned())
    };
    let (compiler, library) = (line("rustc", "--version")?, line("ldd", "--version")?);
    let library = library.rsplit(' ').next().unwrap_or_default().to_owned();
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let avx2 = if flags.split_whitespace().any(|flag| flag == "avx2") { "with" } else { "without" };
    Ok(format!("{compiler}, glibc {library}, {} {avx2} AVX2", std::env::consts::ARCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pairs: &[(&str, u64)]) -> Counts {
        pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn more_than_three_per_cent_fails_and_less_does_not() {
        let known = counts(&[("a", 1000), ("b", 1000), ("c", 1000)]);
        let (text, slower) = compare(&known, &counts(&[("a", 1029), ("b", 1031), ("c", 900), ("d", 1)]));
        assert_eq!(slower, ["b +3.1 %", "d (not in the file)"]);
        assert!(text.contains("c: fewer"), "{text}");
    }

    #[test]
    fn a_few_instructions_more_are_no_failure_of_a_count_of_some_dozens() {
        let known = counts(&[("a", 71), ("b", 71)]);
        let (_, slower) = compare(&known, &counts(&[("a", 75), ("b", 80)]));
        assert_eq!(slower, ["b +12.7 %"]);
    }

    #[test]
    fn every_case_runs() {
        for (name, _, set_up) in CASES {
            let mut run = set_up();
            measured(&mut *run, 2);
            assert_eq!(CASES.iter().filter(|case| case.0 == name).count(), 1, "{name}");
        }
    }
}
