//! Who is measured: engines directly, ramjet, a bare Pingora proxy, and whoever else listens already.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use super::child::Child;
use super::usage::{Tree, stay_on};
use crate::load::client::authority;
use crate::router::{Router, program};

/// Another router: `NAME=URL`, or `NAME=URL@PID` so that its processor time and memory are seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Other {
    name: String,
    url: String,
    process: Option<u32>,
}

impl std::str::FromStr for Other {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once('=').ok_or("NAME=URL or NAME=URL@PID is needed")?;
        let (url, process) = match rest.split_once('@') {
            None => (rest, None),
            Some((url, process)) => (url, Some(process.parse().map_err(|_| format!("{process}: no process id"))?)),
        };
        authority(url)?;
        Ok(Self { name: name.to_owned(), url: url.to_owned(), process })
    }
}

/// Whom the load can be put on.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) tree: Option<Tree>,
}

/// What is wanted of the processes that are started.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) ramjet: Option<PathBuf>,
    /// further settings of ramjet, as JSON
    pub(crate) settings: Value,
    /// engines that run already
    pub(crate) engines: Vec<String>,
    /// how many engines are started if none run
    pub(crate) count: usize,
    /// milliseconds between the events of a stream
    pub(crate) gap: f64,
    /// a bare proxy is started
    pub(crate) bare: bool,
    pub(crate) others: Vec<Other>,
}

/// The targets, and the processes behind them that end with this.
#[derive(Debug)]
pub(crate) struct Targets {
    pub(crate) all: Arc<[Target]>,
    pub(crate) pinned: bool,
    _router: Router,
    _children: Vec<Child>,
}

impl Targets {
    /// Starts what is wanted. Where there are two processors or more, the first is the targets' and the others are the
    /// engines' and the load's: this thread is on those when it returns.
    pub(crate) async fn start(wanted: &Wanted) -> Result<Self, String> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let pinned = processors > 1;
        let rest: Vec<usize> = (1..processors).collect();
        let go = |processors: &[usize]| if pinned { stay_on(processors) } else { Ok(()) };
        let mut children = Vec::new();
        go(&rest)?;
        let mut engines = wanted.engines.clone();
        if engines.is_empty() {
            let count = wanted.count.to_string();
            let words = ["instant", "--count", &count, "--gap", &wanted.gap.to_string()].map(str::to_owned);
            let (child, urls) = Child::start(&words, wanted.count)?;
            children.push(child);
            engines = urls;
        }
        let mut all = vec![Target { name: "direct".to_owned(), address: address(&engines[0])?, tree: None }];
        go(&[0])?;
        let router = Self::router(wanted, &engines).await?;
        all.push(Target {
            name: "ramjet".to_owned(),
            address: address(&router.url())?,
            tree: Some(Tree(router.process())),
        });
        if wanted.bare {
            let words = ["bare", "--upstream", &engines.join(",")].map(str::to_owned);
            let (child, urls) = Child::start(&words, 1)?;
            let tree = Some(Tree(child.process()));
            all.push(Target { name: "bare pingora".to_owned(), address: address(&urls[0])?, tree });
            children.push(child);
        }
        for other in &wanted.others {
            let tree = other.process.map(Tree);
            all.push(Target { name: other.name.clone(), address: address(&other.url)?, tree });
        }
        go(&rest)?;
        Ok(Self { all: all.into(), pinned, _router: router, _children: children })
    }

    async fn router(wanted: &Wanted, engines: &[String]) -> Result<Router, String> {
        let mut settings = wanted.settings.clone();
        let replicas: Vec<Value> = engines.iter().map(|url| json!({"url": url})).collect();
        settings["fleet"] = json!({"replicas": replicas});
        if settings["server"]["threads"].is_null() {
            // the others have one processor too
            settings["server"]["threads"] = 1.into();
        }
        Router::configured(&program(wanted.ramjet.clone())?, settings).await
    }
}

fn address(url: &str) -> Result<SocketAddr, String> {
    authority(url)?.parse().map_err(|_| format!("{url}: a numeric address is needed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_router_has_a_name_and_may_have_a_process() {
        let of = |text: &str| text.parse::<Other>();
        let other = of("nginx=http://127.0.0.1:80@12").unwrap();
        assert_eq!(
            (other.name.as_str(), other.url.as_str(), other.process),
            ("nginx", "http://127.0.0.1:80", Some(12))
        );
        assert_eq!(of("x=http://127.0.0.1:80").unwrap().process, None);
        for wrong in ["http://127.0.0.1:80", "x=127.0.0.1:80", "x=http://127.0.0.1:80@y", "x=http://127.0.0.1"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
