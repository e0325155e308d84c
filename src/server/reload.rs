//! Reading the configuration again while requests run, on SIGHUP or by the admin API.
//!
//! A reload is a step that happens as a whole or not at all: everything is read and prepared first, sources of replicas that
//! are new have answered, and only if nothing is wrong anywhere it comes into force. Two reloads never mix. What cannot change in a running process keeps its old
//! value, all of it, and is told by name: an upgrade applies it. Requests keep the settings that they began with.

use super::handover::Succession;
use super::meaning::key_names;
use super::members::sources;
use super::renew::News;
use super::tls::Certificates;
use super::{admin_token, health, limits, params, rules, terms};
use crate::admin::{Access, Reloads, Report};
use crate::cli::Cli;
use crate::config::{self, Config, Loaded};
use crate::engine::membership::Membership;
use crate::engine::probe::ReadinessProbe;
use crate::fleet::Fleet;
use crate::fleet::router::Router;
use crate::proxy::Terms;
use crate::telemetry::metrics::Metrics;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{Mutex, watch};

/// Brings what was prepared into force; it cannot fail any more.
pub(super) type Commit = Box<dyn FnOnce() + Send>;

/// Something that is read again: prepares what a configuration says of it, or says what is wrong with that.
pub(super) type Part = Box<dyn Fn(&Arc<Loaded>) -> Result<Commit, String> + Send + Sync>;

/// What runs under the configuration.
#[derive(Clone)]
pub(super) struct Live {
    pub(super) fleet: Arc<Fleet>,
    pub(super) router: Arc<Router>,
    pub(super) terms: Arc<ArcSwap<Terms>>,
    pub(super) secret: u64,
    pub(super) access: Arc<ArcSwap<Access>>,
    pub(super) readiness: Arc<ArcSwap<ReadinessProbe>>,
    pub(super) told: watch::Sender<Arc<Loaded>>,
}

/// What is read again besides the replicas, in this order. Whoever holds something else that can change adds it here.
pub(super) fn parts(live: &Live) -> Vec<Part> {
    let part = |commit: fn(&Live, &Arc<Loaded>)| -> Part {
        let live = live.clone();
        Box::new(move |loaded| {
            let (live, loaded) = (live.clone(), loaded.clone());
            Ok(Box::new(move || commit(&live, &loaded)))
        })
    };
    vec![
        part(|live, loaded| live.fleet.tune(params(&loaded.config), rules(&loaded.config))),
        part(|live, loaded| {
            // it is never less: see `keep_fixed`
            let _allowed = live.fleet.allow_index(loaded.config.routing.index_memory);
        }),
        part(|live, loaded| live.router.limit(limits(&loaded.config))),
        part(|live, loaded| live.terms.store(Arc::new(terms(loaded, &live.fleet, live.secret)))),
        part(|live, loaded| {
            let access = Access { token: admin_token(loaded), ..**live.access.load() };
            live.access.store(Arc::new(access));
        }),
        part(|live, loaded| {
            let config = &loaded.config;
            if live.told.borrow().config.health != config.health {
                let probe = ReadinessProbe::new(live.fleet.clone(), health::readiness(config));
                live.readiness.store(Arc::new(probe));
            }
            live.told.send_replace(loaded.clone());
        }),
    ]
}

/// The names of clients' keys, which have series of their own.
pub(super) fn keys(metrics: &Arc<Metrics>) -> Part {
    let metrics = metrics.clone();
    Box::new(move |loaded| {
        let (metrics, loaded) = (metrics.clone(), loaded.clone());
        Ok(Box::new(move || metrics.know_keys(key_names(&loaded))))
    })
}

/// Reloads.
pub(super) struct Reload {
    /// Where the configuration came from.
    file: Option<PathBuf>,
    flags: [Option<String>; 3],
    /// Held while one runs.
    running: Mutex<()>,
    news: News,
    parts: Vec<Part>,
    membership: Arc<Membership>,
    metrics: Arc<Metrics>,
    succession: Arc<Succession>,
    /// Read again with the configuration: their files are named there.
    certificates: Option<Arc<Certificates>>,
}

impl Reload {
    /// Reloads from where `cli` says.
    pub(super) fn new(
        cli: &Cli,
        news: News,
        parts: Vec<Part>,
        membership: Arc<Membership>,
        (metrics, succession, certificates): (Arc<Metrics>, Arc<Succession>, Option<Arc<Certificates>>),
    ) -> Self {
        // a daemon changes its directory
        let file = cli.config.as_ref().map(|file| std::path::absolute(file).unwrap_or_else(|_| file.clone()));
        let flags = [cli.upstream.clone(), cli.listen.clone(), cli.admin.clone()];
        Reload { file, flags, running: Mutex::new(()), news, parts, membership, metrics, succession, certificates }
    }

    /// Reads the configuration and brings it into force, if it is good.
    pub(super) async fn run(&self) -> Report {
        let _one_at_a_time = self.running.lock().await;
        let report = self.attempt().await.unwrap_or_else(|problems| Report { problems, ..Report::default() });
        self.metrics.reload(report.is_good());
        report.problems.iter().for_each(|problem| log::error!("not reloaded: {problem}"));
        if report.is_good() {
            self.certificates.iter().for_each(|certificates| certificates.reload_certificates());
            log::info!("reloaded; changed: {}", list(&report.changed));
            report.warnings.iter().for_each(|warning| log::warn!("{warning}"));
        }
        if !report.needs_upgrade.is_empty() {
            log::warn!("these settings keep their old values until an upgrade: {}", list(&report.needs_upgrade));
        }
        report
    }

    async fn attempt(&self) -> Result<Report, Vec<String>> {
        if self.succession.is_handing_over() {
            return Err(vec!["another process takes over, or has: reload that one".to_owned()]);
        }
        let [upstream, listen, admin] = self.flags.each_ref().map(Option::as_deref);
        let env = config::environment();
        let from = config::Sources { file: self.file.as_deref(), upstream, listen, admin, env: &env };
        let mut loaded = config::load(&from).map_err(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let before = self.news.borrow().clone();
        let needs_upgrade = keep_fixed(&before.config, &mut loaded.config);
        let loaded = Arc::new(loaded);
        let mut wrong = Vec::new();
        let mut prepared = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            match part(&loaded) {
                Ok(commit) => prepared.push(commit),
                Err(problem) => wrong.push(problem),
            }
        }
        let sources = match sources(&loaded) {
            Ok(sources) if wrong.is_empty() => sources,
            Ok(_) => return Err(wrong),
            Err(e) => return Err(wrong.into_iter().chain([e.to_string()]).collect()),
        };
        let commit = || prepared.into_iter().for_each(|commit| commit());
        let replicas = self.membership.exchange(sources, commit).await?;
        Ok(Report {
            problems: Vec::new(),
            generation: self.metrics.configured(),
            changed: changed(&before, &loaded),
            needs_upgrade,
            replicas,
            warnings: loaded.warnings.clone(),
        })
    }
}

#[async_trait]
impl Reloads for Arc<Reload> {
    async fn reload(&self) -> Report {
        let reload = self.clone();
        // whoever asked may leave before it is done
        let run = tokio::spawn(async move { reload.run().await });
        run.await.unwrap_or_else(|e| Report { problems: vec![e.to_string()], ..Report::default() })
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// Takes what cannot change in a running process from `old`; the names of what would be another.
fn keep_fixed(old: &Config, new: &mut Config) -> Vec<String> {
    let mut names = Vec::new();
    macro_rules! fixed {
        ($($section:ident.$key:ident)+) => { $(
            if old.$section.$key != new.$section.$key {
                new.$section.$key.clone_from(&old.$section.$key);
                names.push(concat!(stringify!($section), ".", stringify!($key)).to_owned());
            }
        )+ };
    }
    fixed! {
        listen.api listen.admin listen.tls
        server.threads server.pid_file server.upgrade_sock server.grace server.drain_limit server.user server.group
        // prompts are known by blocks of this size; the listeners have that one, too
        routing.block_bytes timeouts.tcp_keepalive
        // one service sends them
        traces.endpoint traces.ca_file traces.sample traces.service
        // its quarantines are in a file that one guard holds
        health.speculation
        // its writer has the file since the beginning
        log.journal
    }
    if new.routing.index_memory < old.routing.index_memory {
        new.routing.index_memory = old.routing.index_memory;
        names.push("routing.index_memory (less)".to_owned());
    }
    names
}

/// The sections that are not as they were.
fn changed(old: &Loaded, new: &Loaded) -> Vec<String> {
    let mut names = Vec::new();
    macro_rules! sections {
        ($($section:ident)+) => { $(
            if old.config.$section != new.config.$section {
                names.push(stringify!($section).to_owned());
            }
        )+ };
    }
    sections!(fleet routing health retry timeouts limits compat auth cors admin usage log);
    for (is_other, what) in [
        (old.client_keys != new.client_keys, "the clients' keys"),
        (old.admin_token != new.admin_token, "the admin token"),
        (old.dns_key != new.dns_key, "the engines' key"),
    ] {
        if is_other {
            names.push(what.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_cannot_change_keeps_its_old_value_and_is_named() {
        let (old, mut new) = (Config::default(), Config::default());
        assert!(keep_fixed(&old, &mut new).is_empty());
        new.server.threads = Some(3);
        new.routing.block_bytes = 4096;
        new.routing.index_memory /= 2;
        new.retry.attempts = 5;
        let names = keep_fixed(&old, &mut new);
        assert_eq!(names, ["server.threads", "routing.block_bytes", "routing.index_memory (less)"]);
        assert_eq!((&new.server, &new.routing, new.retry.attempts), (&old.server, &old.routing, 5));
        new.routing.index_memory *= 2;
        new.timeouts.connect = Duration::from_millis(7);
        assert!(keep_fixed(&old, &mut new).is_empty());
    }
}
