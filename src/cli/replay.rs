//! `ramjet replay`: makes the choices of a journal again, under other settings if asked, and tells what is different.

mod report;

use crate::fleet::replay::Replay as Again;
use crate::policy::select::Params;
use crate::telemetry::journal::{Line, Reader};
use crate::types::{Basis, FlightMode, PolicyKind};
use report::Report;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::str::FromStr;
use thiserror::Error;

/// Which choices, and under which settings.
#[derive(Debug, clap::Args)]
pub struct Replay {
    /// The journal; where it was rotated, its files in the order in which they were written.
    #[arg(required = true, value_name = "JOURNAL")]
    pub journals: Vec<PathBuf>,
    /// Another setting, such as routing.policy=affinity. It may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Another routing.policy.
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// Another routing.affinity.basis.
    #[arg(long, value_name = "BASIS")]
    pub basis: Option<String>,
    /// Another routing.affinity.alpha.
    #[arg(long, value_name = "BLOCKS")]
    pub alpha: Option<String>,
    /// Another routing.affinity.cap_blocks.
    #[arg(long, value_name = "BLOCKS")]
    pub cap: Option<String>,
    /// How many of the choices that went elsewhere are listed.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub list: usize,
}

/// Why there is nothing to report.
#[derive(Debug, Error)]
pub enum Unplayed {
    /// A setting that is none.
    #[error("{0:?}: {1}")]
    Setting(String, String),
    /// A file that cannot be read.
    #[error("{}: {cause}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// A line that is none of a journal.
    #[error("{}:{line}: {why}", path.display())]
    Line {
        /// In which file.
        path: PathBuf,
        /// Which line.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// No choice at all.
    #[error("there is no choice in it")]
    Empty,
}

impl Unplayed {
    /// The exit code: those of sysexits.h.
    pub fn code(&self) -> u8 {
        match self {
            Unplayed::Setting(..) => 64,
            Unplayed::Line { .. } | Unplayed::Empty => 65,
            Unplayed::File { .. } => 66,
        }
    }
}

/// The longest line that is read: the longest prompts have some thousand blocks.
const LONGEST: u64 = 8 << 20;

/// One setting with its value.
type Setting = Box<dyn Fn(&mut Params)>;

/// The settings that a replay can change.
const KEYS: [&str; 8] = [
    "routing.policy",
    "routing.affinity.basis",
    "routing.affinity.alpha",
    "routing.affinity.cap_blocks",
    "routing.affinity.load_unit",
    "routing.affinity.max_load_units",
    "routing.single_flight.mode",
    "routing.single_flight.min_blocks",
];

impl Replay {
    /// The report to print.
    ///
    /// # Errors
    /// [`Unplayed`].
    pub fn page(&self) -> Result<String, Unplayed> {
        let mut report = Report::default();
        for path in &self.journals {
            self.play(path, &mut report)?;
        }
        if report.is_empty() { Err(Unplayed::Empty) } else { Ok(report.page(self.list)) }
    }

    fn play(&self, path: &PathBuf, report: &mut Report) -> Result<(), Unplayed> {
        let unread = |cause| Unplayed::File { path: path.clone(), cause };
        let mut file = BufReader::new(File::open(path).map_err(unread)?);
        let (mut reader, mut text, mut number) = (Reader::default(), String::new(), 0);
        loop {
            text.clear();
            number += 1;
            if (&mut file).take(LONGEST).read_line(&mut text).map_err(unread)? == 0 {
                return Ok(());
            }
            if text.len() as u64 == LONGEST {
                let why = "it is longer than any line of a journal".to_owned();
                return Err(Unplayed::Line { path: path.clone(), line: number, why });
            }
            // one that is being written
            let Some(text) = text.strip_suffix('\n') else { return Ok(()) };
            let line = reader.line(text);
            let line = line.map_err(|e| Unplayed::Line { path: path.clone(), line: number, why: e.to_string() })?;
            self.take(line, report)?;
        }
    }

    fn take(&self, line: Line, report: &mut Report) -> Result<(), Unplayed> {
        match line {
            Line::Head(part) => {
                if !report.goes_on(part) {
                    let settings = self.settings()?;
                    let other = move |mut params: Params| {
                        settings.iter().for_each(|set| set(&mut params));
                        params
                    };
                    report.begin(Again::under(Box::new(other)), part);
                }
            }
            Line::Step(stage) => report.step(stage),
            Line::Lost(steps) => report.lost(steps),
            Line::Over => {}
        }
        Ok(())
    }

    fn settings(&self) -> Result<Vec<Setting>, Unplayed> {
        let short = [&self.policy, &self.basis, &self.alpha, &self.cap];
        let short = KEYS.into_iter().zip(short).filter_map(|(key, value)| Some((key, value.as_deref()?)));
        let long = self.settings.iter().map(|given| match given.split_once('=') {
            Some((key, value)) => Ok((key.trim(), value.trim())),
            None => Err(Unplayed::Setting(given.clone(), "is not KEY=VALUE".to_owned())),
        });
        short.map(Ok).chain(long).map(|given| given.and_then(|(key, value)| setting(key, value))).collect()
    }
}

fn setting(key: &str, value: &str) -> Result<Setting, Unplayed> {
    let wrong = |allowed: &str| Unplayed::Setting(format!("{key}={value}"), format!("allowed: {allowed}"));
    let is_named = |known: &&str| **known == *key || known.rsplit_once('.').is_some_and(|(_, last)| last == key);
    let set: Result<Setting, String> = match KEYS.iter().position(is_named) {
        Some(0) => word(&PolicyKind::ALL, PolicyKind::name, value, |params, policy| params.policy = policy),
        Some(1) => word(&Basis::ALL, Basis::name, value, |params, basis| params.affinity.basis = basis),
        Some(2) => count(value, 0.0, f64::MAX, |params, alpha| params.affinity.alpha = alpha),
        Some(3) => count(value, 0, u32::MAX, |params, cap| params.affinity.cap_blocks = cap),
        Some(4) => count(value, 1, u64::MAX, |params, bytes| params.load.unit_bytes = bytes),
        Some(5) => count(value, 1, u32::MAX, |params, most| params.load.max_units = most),
        Some(6) => word(&FlightMode::ALL, FlightMode::name, value, |params, mode| params.flight.mode = mode),
        Some(7) => count(value, 0, u32::MAX, |params, least| params.flight.min_blocks = least),
        _ => Err(format!("{}, with a value", KEYS.join(", "))),
    };
    set.map_err(|allowed| wrong(&allowed))
}

/// One word of several; what is allowed, if it is none of them.
fn word<T: Copy + 'static>(
    all: &[T],
    name: fn(T) -> &'static str,
    value: &str,
    set: fn(&mut Params, T),
) -> Result<Setting, String> {
    let found = all.iter().copied().find(|one| name(*one) == value);
    let found = found.ok_or_else(|| all.iter().map(|one| name(*one)).collect::<Vec<_>>().join(", "))?;
    Ok(Box::new(move |params| set(params, found)))
}

/// A number of some range.
fn count<T: FromStr + PartialOrd + Display + Copy + 'static>(
    value: &str,
    least: T,
    most: T,
    set: fn(&mut Params, T),
) -> Result<Setting, String> {
    let found = value.parse().ok().filter(|number: &T| *number >= least && *number <= most);
    let found = found.ok_or_else(|| format!("a number from {least}"))?;
    Ok(Box::new(move |params| set(params, found)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(settings: &[&str]) -> Replay {
        let settings = settings.iter().map(|s| (*s).to_owned()).collect();
        Replay { journals: vec![], settings, policy: None, basis: None, alpha: None, cap: None, list: 0 }
    }

    #[test]
    fn every_setting_sets_its_own_and_a_wrong_one_says_what_is_allowed() {
        let start = crate::policy::testing::params(PolicyKind::Cost);
        let set = |settings: &[&str]| {
            let mut params = start;
            replay(settings).settings().unwrap().iter().for_each(|set| set(&mut params));
            params
        };
        assert_eq!(set(&[]), start);
        let all = set(&[
            "routing.policy=affinity",
            "basis = absolute",
            "routing.affinity.alpha=0.5",
            "cap_blocks=9",
            "load_unit=77",
            "max_load_units=3",
            "mode=off",
            "min_blocks=2",
        ]);
        let (affinity, load, flight) = (all.affinity, all.load, all.flight);
        assert_eq!((all.policy, affinity.basis, affinity.alpha), (PolicyKind::Affinity, Basis::Absolute, 0.5));
        assert_eq!((affinity.cap_blocks, load.unit_bytes, load.max_units), (9, 77, 3));
        assert_eq!((flight.mode, flight.min_blocks), (FlightMode::Off, 2));
        let short = Replay { policy: Some("load".to_owned()), cap: Some("1".to_owned()), ..replay(&[]) };
        let mut params = start;
        short.settings().unwrap().iter().for_each(|set| set(&mut params));
        assert_eq!((params.policy, params.affinity.cap_blocks), (PolicyKind::Load, 1));
        for (given, said) in [
            ("policy=best", "cost, affinity, load, round_robin"),
            ("alpha=-1", "a number from 0"),
            ("alpha=inf", "a number from 0"),
            ("load_unit=0", "a number from 1"),
            ("listen.api=x", "routing.policy"),
            ("policy", "KEY=VALUE"),
        ] {
            let Err(wrong) = replay(&[given]).settings() else { panic!("{given}") };
            assert!(wrong.to_string().contains(said) && wrong.code() == 64, "{wrong}");
        }
    }
}
