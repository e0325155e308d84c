//! Fleets that work hard and honestly, for long: nobody may be fenced.
//!
//! Time can be compressed: the engines run so many times as fast, and every duration of the router's health settings is
//! divided by the same number, so that a silence means what it would mean in full time.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::load::{Agents, End, Work};
use super::stage::Stage;
use crate::engine::params::Params;
use crate::load::client::authority;

/// What is run for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Long {
    /// twice as many requests as the engines can run at once, all the time
    Saturated,
    /// new prompts of 20k to 120k tokens, one after another
    Prefill,
    /// prompts of a million tokens beside short ones
    Million,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) virtual_minutes: f64,
    pub(crate) answered: usize,
    pub(crate) failed: usize,
    /// virtual seconds to the first token: median, 95th percentile, longest
    pub(crate) ttft: [f64; 3],
    /// fences, by replica and reason
    pub(crate) fences: Vec<String>,
}

impl Long {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Long::Saturated => "saturated at twice its capacity",
            Long::Prefill => "heavy prefill",
            Long::Million => "prompts of a million tokens",
        }
    }

    fn params(self, params: &Params) -> Params {
        let params = Params { max_context: 1_200_000, ..params.clone() };
        match self {
            Long::Saturated => Params { max_running: 8, ..params },
            // a million tokens take more than eight minutes
            Long::Million => Params { prefill_rate: 2000.0, ..params },
            Long::Prefill => params,
        }
    }

    fn works(self, time_scale: f64) -> Vec<Work> {
        let base = Work {
            agents: 32,
            prompt: (2000.0, 8000.0),
            turn: (200.0, 800.0),
            unique: false,
            answer: (100.0, 400.0),
            think: (0.0, 10.0),
            patience: Duration::from_secs(3600),
            time_scale,
        };
        match self {
            Long::Saturated => vec![base],
            Long::Prefill => vec![Work {
                agents: 10,
                prompt: (20e3, 120e3),
                unique: true,
                answer: (20.0, 200.0),
                think: (0.0, 20e3),
                ..base
            }],
            Long::Million => vec![
                Work { agents: 1, prompt: (950e3, 1050e3), unique: true, think: (0.0, 5e3), ..base },
                Work { agents: 4, prompt: (2e3, 8e3), think: (1e3, 10e3), ..base },
            ],
        }
    }
}

/// The health settings in compressed time.
fn health(time_scale: f64) -> Value {
    let ms = |full: f64| format!("{}ms", (full / time_scale).round().max(1.0));
    if (time_scale - 1.0).abs() < f64::EPSILON {
        return json!({});
    }
    json!({
        "readiness": {"interval": ms(5e3), "timeout": ms(5e3)},
        "generation": {"interval": ms(15e3), "timeout": ms(20e3), "suppress_after_success": ms(30e3)},
        "progress": {"silence": ms(1e3), "timeout": ms(1.5e3)},
        "errors": {"pause": ms(10e3)},
        "slow_start": {"window": ms(30e3)},
    })
}

/// Runs it for so many virtual minutes.
pub(crate) async fn run(long: Long, minutes: f64, program: &Path, params: &Params) -> Result<Held, String> {
    let params = long.params(params);
    let scale = params.time_scale;
    let stage = Stage::set(program, 2, &params, health(scale)).await?;
    let host = authority(&stage.router.url())?.to_owned();
    let began = Instant::now();
    let all: Vec<Agents> =
        long.works(scale).into_iter().map(|work| Agents::start(&host, &params.model, work)).collect();
    tokio::time::sleep(Duration::from_secs_f64(minutes * 60.0 / scale)).await;
    let fence = |m: &super::stage::Move| {
        let at = m.at.duration_since(began).as_secs_f64();
        m.fence.as_ref().map(|reason| format!("replica {} after {at:.1} s: {reason}", m.replica))
    };
    let fences = stage.moves().iter().filter_map(fence).collect();
    let notes: Vec<_> = all.iter().flat_map(Agents::notes).collect();
    let mut ttft: Vec<f64> = notes.iter().filter(|n| n.end == End::Answered).map(|n| n.ttft * scale / 1e3).collect();
    ttft.sort_by(f64::total_cmp);
    let at = |part: usize, of: usize| ttft.get((ttft.len() * part / of).min(ttft.len().saturating_sub(1))).copied();
    Ok(Held {
        virtual_minutes: minutes,
        answered: ttft.len(),
        failed: notes.iter().filter(|n| !matches!(n.end, End::Answered | End::Open)).count(),
        ttft: [at(1, 2), at(19, 20), at(1, 1)].map(|t| t.unwrap_or(0.0)),
        fences,
    })
}
