//! `ramjet-bench overhead`: what a router costs between a client and an engine that answers at once.
//!
//! Direct, ramjet, a bare Pingora proxy and whoever else is named take turns in every round, cell by cell (a size of
//! body and a number of connections), so that what else the machine does meets all alike; figures are compared within
//! a round, and their spread over the rounds is shown. Engines and load are processes of their own. Where there are two
//! processors, targets have the first one alone, with one thread, and so requests a second are those of one core;
//! engines and load have the rest. The processor time of a target is what the kernel accounts to its processes.

mod bare;
pub(crate) mod body;
mod child;
pub(crate) mod fire;
pub(crate) mod instant;
pub(crate) mod table;
pub(crate) mod targets;
pub(crate) mod usage;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

pub(crate) use bare::{BareArgs, run as bare};
use body::{Asked, request};
use fire::{Hit, Shot, fire};
pub(crate) use instant::{InstantArgs, run as instant};
use targets::{Other, Targets, Wanted};

/// The most bytes of requests that are made ahead for one cell.
const AHEAD: usize = 32 << 20;

/// What a router costs.
#[derive(Args, Debug)]
pub(crate) struct OverheadArgs {
    /// the router's binary (default: beside this one)
    #[arg(long)]
    ramjet: Option<PathBuf>,
    /// further settings of ramjet, as JSON
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = settings)]
    settings: Value,
    /// bodies in bytes
    #[arg(long, value_delimiter = ',', default_value = "1024,65536,524288,4194304")]
    bodies: Vec<usize>,
    /// connections at one time
    #[arg(long, value_delimiter = ',', default_value = "1,16,64")]
    connections: Vec<usize>,
    /// how often everything is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// milliseconds for which a cell is measured
    #[arg(long, default_value_t = 700)]
    millis: u64,
    /// milliseconds of load before that
    #[arg(long, default_value_t = 150)]
    warm_up: u64,
    /// an engine that runs already; may be repeated (default: some are started)
    #[arg(long)]
    engine: Vec<String>,
    /// how many engines are started
    #[arg(long, default_value_t = 2)]
    engines: usize,
    /// another router; may be repeated
    #[arg(long, value_name = "NAME=URL[@PID]")]
    other: Vec<Other>,
    /// print JSON instead of the table
    #[arg(long)]
    json: bool,
    /// write JSON to a file, too
    #[arg(long)]
    save: Option<PathBuf>,
}

/// One target in one cell: the figures of each round.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) bytes: usize,
    pub(crate) connections: usize,
    pub(crate) target: String,
    pub(crate) hits: Vec<Hit>,
}

pub(crate) fn settings(text: &str) -> Result<Value, String> {
    match serde_json::from_str(text) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err("an object is needed".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Measures and prints.
pub(crate) async fn run(args: OverheadArgs) -> Result<(), String> {
    let wanted = Wanted {
        ramjet: args.ramjet.clone(),
        settings: args.settings.clone(),
        engines: args.engine.clone(),
        count: args.engines.max(1),
        gap: 0.0,
        bare: true,
        others: args.other.clone(),
    };
    let targets = Targets::start(&wanted).await?;
    let mut rows = rows(&args, &targets);
    for round in 0..args.rounds {
        let mut at = 0;
        for &bytes in &args.bodies {
            for &connections in &args.connections {
                let requests = requests(bytes, connections);
                let turns = targets.all.len();
                for turn in 0..turns {
                    // nobody is always the one after the heaviest
                    let which = (turn + crate::num::to_size(round)) % turns;
                    let target = &targets.all[which];
                    let shot = Shot {
                        address: target.address,
                        tree: target.tree,
                        requests: requests.clone(),
                        connections,
                        warm_up: Duration::from_millis(args.warm_up),
                        lasts: Duration::from_millis(args.millis),
                    };
                    rows[at + which].hits.push(fire(shot).await?);
                }
                at += turns;
            }
        }
        eprintln!("round {} of {}", round + 1, args.rounds);
    }
    told(&table::json(&rows, targets.pinned), &table::markdown(&rows, targets.pinned), args.json, args.save.as_ref())
}

/// Prints what was found as it is wanted, and keeps it where that is wanted.
pub(crate) fn told(json: &Value, text: &str, as_json: bool, save: Option<&PathBuf>) -> Result<(), String> {
    if let Some(file) = save {
        std::fs::write(file, json.to_string()).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    if as_json {
        println!("{json}");
    } else {
        print!("{text}");
    }
    Ok(())
}

fn rows(args: &OverheadArgs, targets: &Targets) -> Vec<Row> {
    let cells = args.bodies.iter().flat_map(|bytes| args.connections.iter().map(move |n| (*bytes, *n)));
    let of = |(bytes, connections)| {
        let row =
            move |target: &targets::Target| Row { bytes, connections, target: target.name.clone(), hits: Vec::new() };
        targets.all.iter().map(row)
    };
    cells.flat_map(of).collect()
}

/// A conversation for each connection, as long as that is not too much to keep ready.
fn requests(bytes: usize, connections: usize) -> Arc<[Vec<u8>]> {
    let conversations = connections.min(AHEAD / bytes.max(1)).max(1);
    let asked = |conversation| Asked { bytes, conversation, max_tokens: 16, stream: false };
    (0..conversations).map(|n| request(asked(n))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_an_object() {
        assert!(settings("{\"log\":{}}").is_ok() && settings("[]").is_err() && settings("{").is_err());
    }

    #[test]
    fn each_connection_has_its_conversation_while_memory_allows() {
        assert_eq!(requests(1024, 16).len(), 16);
        assert_eq!(requests(4 << 20, 64).len(), 8);
        assert_eq!(requests(1 << 30, 64).len(), 1);
    }
}
