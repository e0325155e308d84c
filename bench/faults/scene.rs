//! One fault: agents work on two replicas, one of them fails, comes back, and what that cost is counted.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::front::Mode;
use super::load::{Agents, End, Note, Work};
use super::stage::Stage;
use crate::engine::params::Params;
use crate::load::client::authority;

/// What can be wrong with a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Frozen,
    Refused,
    BlackHoled,
    Slow,
    #[value(name = "500")]
    Broken,
    ErrorEvent,
    Loading,
    Busy,
    Restarted,
    WrongModel,
}

/// The replica that fails.
const SICK: usize = 0;
const WARM: Duration = Duration::from_secs(10);
/// A fault that is not noticed by then is one that is lived with.
const NOTICED: Duration = Duration::from_secs(25);
/// How long a fault lasts after it was noticed.
const LASTS: Duration = Duration::from_secs(6);
const BACK: Duration = Duration::from_secs(60);
const AFTER: Duration = Duration::from_secs(5);
/// A process that restarts is away for so long.
const RESTART: Duration = Duration::from_secs(2);
/// The shortest of the router's default intervals between two probes, in seconds: readiness.
pub(crate) const INTERVAL: f64 = 5.0;
/// A recovered replica is back within so many of them, and the time that answers take, in seconds.
const RECOVERY: (f64, f64) = (2.0, 0.5);
/// What `/health` said may be older by so much when a request is placed.
const GRACE: Duration = Duration::from_millis(250);

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) fence: Option<String>,
    pub(crate) noticed: Option<f64>,
    pub(crate) lost: usize,
    pub(crate) most: usize,
    pub(crate) turned_away: usize,
    /// begun after the fence and not answered
    pub(crate) lost_after: usize,
    pub(crate) back: Option<f64>,
    /// whether the other replica was ever fenced
    pub(crate) peer_fenced: bool,
    /// requests of the whole run, and those that came while the fault lasted
    pub(crate) requests: (usize, usize),
    pub(crate) why: Vec<String>,
}

impl Kind {
    pub(crate) const ALL: [Kind; 10] = [
        Kind::Frozen,
        Kind::Refused,
        Kind::BlackHoled,
        Kind::Slow,
        Kind::Broken,
        Kind::ErrorEvent,
        Kind::Loading,
        Kind::Busy,
        Kind::Restarted,
        Kind::WrongModel,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Frozen => "frozen",
            Kind::Refused => "refused",
            Kind::BlackHoled => "black-holed",
            Kind::Slow => "slow (6 x)",
            Kind::Broken => "500 at once",
            Kind::ErrorEvent => "error event",
            Kind::Loading => "loading",
            Kind::Busy => "busy",
            Kind::Restarted => "restarted empty",
            Kind::WrongModel => "wrong model",
        }
    }

    /// Whether it must keep its traffic.
    fn is_honest(self) -> bool {
        matches!(self, Kind::Slow | Kind::Busy)
    }

    fn begin(self, stage: &Stage) -> Result<(), String> {
        let engine = |fault: &str| stage.engines.set_faults(&[format!("sim-{SICK}={fault}")]);
        let front = |mode| {
            stage.fronts[SICK].set(mode);
            Ok(())
        };
        match self {
            Kind::Frozen => engine("freeze"),
            Kind::Slow => engine("slow:6"),
            Kind::ErrorEvent => engine("error:3"),
            Kind::Busy => engine("503:1"),
            Kind::Refused => front(Mode::Closed),
            Kind::Restarted => {
                // the requests and the cache are gone with the process
                engine("refuse")?;
                front(Mode::Closed)
            }
            Kind::BlackHoled => front(Mode::BlackHole),
            Kind::Broken => front(Mode::Broken),
            Kind::Loading => front(Mode::Loading),
            Kind::WrongModel => front(Mode::OtherModel),
        }
    }

    /// How `outcome` differs from what is promised.
    fn judge(self, outcome: &mut Outcome) {
        let mut why = Vec::new();
        if outcome.peer_fenced {
            why.push("the healthy replica was fenced".to_owned());
        }
        if outcome.requests.1 == 0 {
            why.push("nothing was asked during the fault".to_owned());
        }
        match outcome.noticed {
            Some(_) if self.is_honest() => why.push("fenced though it worked".to_owned()),
            // what is away for a moment is gone round, noticed or not
            None if !self.is_honest() && self != Kind::Restarted => why.push("not noticed".to_owned()),
            Some(after) if self == Kind::Frozen && after > 3.0 => why.push(format!("noticed after {after:.1} s")),
            _ => {}
        }
        match outcome.back {
            None if outcome.noticed.is_some() => why.push("not back".to_owned()),
            Some(after) if after > RECOVERY.0 * INTERVAL + RECOVERY.1 => {
                why.push(format!("back after more than {} probe intervals", RECOVERY.0));
            }
            _ => {}
        }
        if outcome.lost_after > 0 {
            why.push(format!("{} begun after the fence were lost", outcome.lost_after));
        }
        if outcome.most > 1 {
            why.push(format!("a session lost {}", outcome.most));
        }
        if outcome.turned_away > 0 && self != Kind::Busy {
            why.push(format!("{} were turned away", outcome.turned_away));
        }
        outcome.why = why;
    }
}

/// Runs one kind from start to end.
pub(crate) async fn run(kind: Kind, program: &Path, params: &Params) -> Result<Outcome, String> {
    let stage = Stage::set(program, 2, params, json!({})).await?;
    let host = authority(&stage.router.url())?.to_owned();
    let agents = Agents::start(&host, &params.model, work(params.time_scale));
    tokio::time::sleep(WARM).await;
    let began = Instant::now();
    kind.begin(&stage)?;
    let fenced = if kind == Kind::Restarted {
        tokio::time::sleep(RESTART).await;
        None
    } else {
        let fenced = stage.turned(SICK, true, began, NOTICED).await;
        if fenced.is_some() {
            tokio::time::sleep(LASTS).await;
        }
        fenced
    };
    let ended = Instant::now();
    stage.engines.set_faults(&[format!("sim-{SICK}=none")])?;
    stage.fronts[SICK].set(Mode::Open);
    // one that was away for a moment may be noticed when it is back
    let fenced = match fenced {
        None if kind == Kind::Restarted => stage.turned(SICK, true, began, RESTART).await,
        fenced => fenced,
    };
    let back = match &fenced {
        Some(fenced) => stage.turned(SICK, false, fenced.at, BACK).await,
        None => None,
    };
    tokio::time::sleep(AFTER).await;
    let seconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
    let mut outcome = Outcome {
        noticed: fenced.as_ref().map(|m| seconds(began, m.at)),
        back: back.map(|m| seconds(ended, m.at)),
        peer_fenced: stage.moves().iter().any(|m| m.replica != SICK && m.fence.is_some()),
        ..Outcome::default()
    };
    count(&mut outcome, &agents.notes(), [began, ended], fenced.as_ref().map(|m| m.at));
    outcome.fence = fenced.and_then(|m| m.fence);
    kind.judge(&mut outcome);
    Ok(outcome)
}

/// Requests that were not answered, or only because the fault ended.
fn count(outcome: &mut Outcome, notes: &[Note], [began, ended]: [Instant; 2], fenced: Option<Instant>) {
    let touched = |note: &&Note| note.began < ended && (note.end == End::Open || note.ended > began);
    let mut of_agent = std::collections::BTreeMap::new();
    for note in notes.iter().filter(touched) {
        outcome.requests.1 += 1;
        if note.end == End::TurnedAway {
            outcome.turned_away += 1;
            continue;
        }
        let waited = note.began < began && note.ended > ended && fenced.is_some();
        if note.end != End::Answered || waited {
            *of_agent.entry(note.agent).or_insert(0) += 1;
            outcome.lost += 1;
            outcome.lost_after += usize::from(fenced.is_some_and(|at| note.began > at + GRACE));
        }
    }
    outcome.requests.0 = notes.len();
    outcome.most = of_agent.into_values().max().unwrap_or(0);
}

/// Twelve agents: prompts of some thousand tokens, short answers, hardly a pause.
fn work(time_scale: f64) -> Work {
    Work {
        agents: 12,
        prompt: (3000.0, 6000.0),
        turn: (200.0, 800.0),
        unique: false,
        answer: (30.0, 120.0),
        think: (200.0, 1500.0),
        patience: Duration::from_secs(30),
        time_scale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(agent: usize, began: Instant, [from, to]: [u64; 2], end: End) -> Note {
        let at = |ms| began + Duration::from_millis(ms);
        Note { agent, began: at(from), ended: at(to), end, replica: None, ttft: 0.0 }
    }

    #[test]
    fn what_failed_or_waited_for_the_end_of_the_fault_is_lost() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let failed = || End::Failed("x".to_owned());
        let notes = [
            note(0, start, [0, 50], failed()),
            note(0, start, [90, 9500], End::Answered),
            note(0, start, [9600, 9700], failed()),
            note(1, start, [200, 900], failed()),
            note(1, start, [2000, 2500], failed()),
            note(2, start, [2000, 2500], End::Answered),
            note(2, start, [2600, 2700], End::TurnedAway),
            note(3, start, [8000, 0], End::Open),
        ];
        let mut outcome = Outcome::default();
        count(&mut outcome, &notes, [at(100), at(9000)], Some(at(1500)));
        assert_eq!((outcome.lost, outcome.most, outcome.lost_after, outcome.turned_away), (4, 2, 2, 1));
        assert_eq!(outcome.requests, (8, 6));
        Kind::Frozen.judge(&mut outcome);
        assert!(outcome.why.iter().any(|why| why == "not noticed"), "{:?}", outcome.why);
        assert!(outcome.why.iter().any(|why| why == "a session lost 2"), "{:?}", outcome.why);
        let judged = |noticed, back| {
            let mut outcome = Outcome { noticed, back, requests: (9, 9), ..Outcome::default() };
            Kind::Refused.judge(&mut outcome);
            outcome.why.is_empty()
        };
        assert!(judged(Some(1.0), Some(10.0)));
        assert!(!judged(Some(1.0), Some(11.0)) && !judged(Some(1.0), None) && !judged(None, None));
    }
}
