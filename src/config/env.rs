//! The environment and the flags as layers above the file.
//!
//! Names and scales are those that deployments already use, so they start unchanged. A name becomes a node at the
//! key it stands for and is then checked like the file.
//! **Invariant: a name of the family that nothing reads stops the start**, as a stale setting would otherwise run
//! silently with other tuning.

use super::Sources;
use super::kind::{LINE, Scalar};
use super::node::{Node, Value};
use super::page::Page;
use super::problem::{Origin, Problem, quoted};
use super::rules::{self, EveryReplica};
use super::suggest;
use super::values::Secret;

/// What a name does.
#[derive(Clone, Copy)]
enum Act {
    /// Its value is the key's.
    Key(&'static str),
    /// Its value, a number of milliseconds, is the key's.
    Millis(&'static str),
    /// Its value, separated by commas, is the key's list.
    List(&'static str),
    /// It turns the key to the first word when on, to the second when off.
    Switch(&'static str, [&'static str; 2]),
    /// Its value, URLs separated by commas, is the fleet.
    Upstream,
    /// Its value is the key's; 0 is null.
    OrNull(&'static str),
    /// It says something of every replica, whoever names the replicas.
    Every(Said),
}

/// What a name says of every replica.
#[derive(Clone, Copy)]
enum Said {
    /// The models of each, separated by commas.
    Models,
    /// The key sent to each.
    Token,
    /// The data-parallel ranks of each, separated by commas, or one number for all.
    Ranks,
    /// Which of them are the lane for long prompts, separated by commas.
    Lane,
}

/// Every name that may be set.
const NAMES: [(&str, Act); 27] = [
    ("RJ_UPSTREAM", Act::Upstream),
    ("RJ_UPSTREAM_TOKEN", Act::Every(Said::Token)),
    ("RJ_UPSTREAM_MODELS", Act::Every(Said::Models)),
    ("RJ_UPSTREAM_CONNECT_TIMEOUT_MS", Act::Millis("timeouts.connect")),
    ("RJ_UPSTREAM_POOL_IDLE_TIMEOUT_MS", Act::Millis("timeouts.pool_idle")),
    ("RJ_AFFINITY", Act::Switch("routing.policy", ["affinity", "load"])),
    ("RJ_ROUTE_ALPHA", Act::Key("routing.affinity.alpha")),
    ("RJ_ROUTE_AFFINITY_BASIS", Act::Key("routing.affinity.basis")),
    ("RJ_ROUTE_CHUNK_BYTES", Act::Key("routing.block_bytes")),
    ("RJ_ROUTE_MAX_PREFIX_BYTES", Act::Key("routing.max_prefix_bytes")),
    ("RJ_ROUTE_MAX_OVERLAP_BLOCKS", Act::Key("routing.affinity.cap_blocks")),
    ("RJ_ROUTE_LOAD_UNIT_BYTES", Act::Key("routing.affinity.load_unit")),
    ("RJ_ROUTE_MAX_LOAD_UNITS", Act::Key("routing.affinity.max_load_units")),
    ("RJ_ROUTE_PHASE_AWARE_LOAD", Act::Switch("routing.affinity.phase_aware", ["true", "false"])),
    ("RJ_ROUTE_MAX_ATTEMPTS", Act::Key("retry.attempts")),
    ("RJ_API_ADDR", Act::List("listen.api")),
    ("RJ_METRICS_ADDR", Act::Key("listen.admin")),
    ("RJ_ROUTE_PREFIX_SINGLE_FLIGHT_MODE", Act::Key("routing.single_flight.mode")),
    ("RJ_ROUTE_LONG_PROMPT_BYTES", Act::OrNull("routing.long_prompt.over")),
    (rules::LONG_PROMPT_UPSTREAMS, Act::Every(Said::Lane)),
    ("RJ_ROUTE_LONG_PROMPT_SHORT", Act::Key("routing.long_prompt.short")),
    ("RJ_ROUTE_JOURNAL", Act::Key("log.journal")),
    (rules::DP_RANKS, Act::Every(Said::Ranks)),
    ("RJ_UPSTREAM_RANK_PROBE", Act::Switch("health.generation.mode", ["ranks", "off"])),
    ("RJ_UPSTREAM_RANK_PROBE_TIMEOUT_MS", Act::Millis("health.generation.timeout")),
    ("RJ_MAX_TOKENS_STRIP", Act::OrNull("compat.strip_max_tokens_over")),
    ("RJ_ADVERTISE_CTX_MARGIN", Act::Key("compat.context_margin")),
];

/// What the environment says.
pub(super) struct Environment {
    pub(super) layer: Node,
    pub(super) every: EveryReplica,
    pub(super) warnings: Vec<String>,
    /// Whether it names the fleet.
    pub(super) upstream: bool,
}

/// Reads the environment. A name without a value, as Compose files leave behind, counts as not set.
pub(super) fn read(env: &[(String, String)], problems: &mut Vec<Problem>) -> Environment {
    let mut read = Environment {
        layer: Node::empty(Origin::Default),
        every: EveryReplica::default(),
        warnings: Vec::new(),
        upstream: false,
    };
    for (name, value) in env {
        let outcome = match NAMES.iter().find(|(known, _)| known == name) {
            Some(_) if value.is_empty() => Ok(()),
            Some((_, act)) => read.act(*act, name, value),
            None => unread(name),
        };
        if let Err((found, allowed)) = outcome {
            problems.push(Problem { origin: Origin::Env(name.clone()), path: String::new(), found, allowed });
        }
    }
    read.mean_affinity(env);
    read
}

impl Environment {
    /// A deployment that tunes the affinity rule means that rule: nothing else reads its parameters.
    fn mean_affinity(&mut self, env: &[(String, String)]) {
        let key = |act| match act {
            Act::Key(key) | Act::Switch(key, _) => key,
            _ => "",
        };
        let is_set = |of: &dyn Fn(&str) -> bool| {
            let tunes =
                |(name, act): &&(&str, Act)| of(key(*act)) && env.iter().any(|(n, v)| n == name && !v.is_empty());
            NAMES.iter().find(tunes).map(|(name, _)| *name)
        };
        let Some(name) = is_set(&|key| key.starts_with("routing.affinity.")) else { return };
        if is_set(&|key| key == "routing.policy").is_none() {
            self.layer.put("routing.policy", Node::text(Origin::Env(name.to_owned()), "affinity"));
            self.warnings
                .push(format!("{name} tunes the affinity rule, so routing.policy is affinity; unset it for cost"));
        }
    }
}

/// The flags, which override everything else.
pub(super) fn flags(sources: &Sources<'_>) -> Node {
    let mut layer = Node::empty(Origin::Default);
    if let Some(urls) = sources.upstream {
        layer.put("fleet.replicas", replicas(&Origin::Flag("--upstream"), urls));
    }
    if let Some(address) = sources.listen {
        layer.put("listen.api", list(&Origin::Flag("--listen"), address));
    }
    if let Some(address) = sources.admin {
        layer.put("listen.admin", Node::text(Origin::Flag("--admin"), address));
    }
    layer
}

/// The names, as a part of the reference.
pub(super) fn document(page: &mut Page) {
    for (name, act) in NAMES {
        let meaning = match act {
            Act::Key(key) => key.to_owned(),
            Act::Millis(key) => format!("{key}, in milliseconds"),
            Act::List(key) => format!("{key}, separated by commas"),
            Act::Switch(key, [on, off]) => format!("{key}: on is {on}, off is {off}"),
            Act::Upstream => "fleet.replicas, as URLs separated by commas".to_owned(),
            Act::Every(Said::Models) => "the models of every replica, separated by commas".to_owned(),
            Act::Every(Said::Token) => "the key sent to every replica".to_owned(),
            Act::Every(Said::Ranks) => {
                "dp_ranks of each replica, separated by commas, or one number for all".to_owned()
            }
            Act::OrNull(key) => format!("{key}; 0 is null"),
            Act::Every(Said::Lane) => {
                "the replicas with lane: long: names, URLs or places from 0, separated by commas".to_owned()
            }
        };
        page.comment(&format!("  {name:<35} {meaning}"));
    }
}

/// What was found and what is allowed.
type Refusal = (String, String);

impl Environment {
    fn act(&mut self, act: Act, name: &str, value: &str) -> Result<(), Refusal> {
        let origin = Origin::Env(name.to_owned());
        match act {
            Act::Key(key) => self.layer.put(key, Node::text(origin, value)),
            Act::Millis(key) => {
                let millis: u64 = value.parse().map_err(|_| refusal(value, "a whole number of milliseconds"))?;
                self.layer.put(key, Node::text(origin, format!("{millis}ms")));
            }
            Act::List(key) => self.layer.put(key, list(&origin, value)),
            Act::Switch(key, [on, off]) => {
                let on_off = switch(value).ok_or_else(|| refusal(value, "on, off, 1, 0, true or false"))?;
                self.layer.put(key, Node::text(origin, if on_off { on } else { off }));
            }
            Act::Upstream => {
                self.upstream = true;
                self.layer.put("fleet.replicas", replicas(&origin, value));
            }
            Act::Every(said) => self.of_every_replica(said, value)?,
            Act::OrNull(key) if value == "0" => self.layer.put(key, Node { origin, value: Value::Null }),
            Act::OrNull(key) => self.layer.put(key, Node::text(origin, value)),
        }
        Ok(())
    }

    /// What is said of every replica waits until their list is known.
    fn of_every_replica(&mut self, said: Said, value: &str) -> Result<(), Refusal> {
        match said {
            Said::Models => {
                let models: Option<Vec<String>> = items(value).map(|model| LINE.parse(model)).collect();
                self.every.models = Some(models.ok_or_else(|| refusal(value, &LINE.allowed()))?);
            }
            Said::Token => {
                let refused = || ("a value that is not shown".to_owned(), Secret::ALLOWED.to_owned());
                self.every.api_key = Some(Secret::new(value).ok_or_else(refused)?);
            }
            Said::Ranks => {
                let number = |item: &str| item.parse().ok().filter(|ranks| *ranks <= rules::MOST_RANKS);
                let ranks: Option<Vec<u32>> = items(value).map(number).collect();
                let allowed = || format!("whole numbers from 0 to {}, separated by commas", rules::MOST_RANKS);
                self.every.ranks = Some(ranks.ok_or_else(|| refusal(value, &allowed()))?);
            }
            Said::Lane => self.every.lane = Some(items(value).map(str::to_owned).collect()),
        }
        Ok(())
    }
}

/// A name that nothing reads: a problem where it belongs to a family that once meant a router's settings.
fn unread(name: &str) -> Result<(), Refusal> {
    if name.starts_with("MD_") || name.starts_with("DS4_") {
        return Err(("a name that nothing reads".to_owned(), "no MD_* and no DS4_* name".to_owned()));
    }
    if name.starts_with("RJ_") {
        let hint = suggest::hint(name, NAMES.iter().map(|(known, _)| *known));
        return Err(("an unknown name".to_owned(), format!("the RJ_* names that `ramjet reference` lists{hint}")));
    }
    Ok(())
}

fn refusal(value: &str, allowed: &str) -> Refusal {
    (quoted(value), allowed.to_owned())
}

fn switch(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "on" | "1" | "true" => Some(true),
        "off" | "0" | "false" => Some(false),
        _ => None,
    }
}

/// What stands between the commas.
fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

fn list(origin: &Origin, text: &str) -> Node {
    let nodes = items(text).map(|item| Node::text(origin.clone(), item)).collect();
    Node { origin: origin.clone(), value: Value::List(nodes) }
}

/// Replicas of which nothing but the URLs is known.
fn replicas(origin: &Origin, urls: &str) -> Node {
    let replica = |url: &str| {
        let mut replica = Node::empty(origin.clone());
        replica.put("url", Node::text(origin.clone(), url));
        replica
    };
    Node { origin: origin.clone(), value: Value::List(items(urls).map(replica).collect()) }
}
