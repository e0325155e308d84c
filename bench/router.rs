//! One ramjet process under test, with one routing setting. It ends when this is dropped.
//!
//! The settings go in as a user gives them: the `RJ_*` environment for the published rules, a file for the rest. The
//! process sees no `RJ_*` name of our own environment, so a run cannot be bent by the shell it is started from.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::load::client::Client;
use crate::load::cpu_seconds;

const START_LIMIT: Duration = Duration::from_secs(15);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How the router is told to choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// nothing said: what a new user gets
    Default,
    Load,
    Absolute,
    Marginal,
    Relative,
    Cost,
}

impl Policy {
    /// The word on the command line.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "default" => Self::Default,
            "load" => Self::Load,
            "absolute" => Self::Absolute,
            "marginal" => Self::Marginal,
            "relative" => Self::Relative,
            "cost" => Self::Cost,
            _ => return None,
        })
    }

    fn basis(self) -> Option<&'static str> {
        match self {
            Self::Absolute => Some("absolute"),
            Self::Marginal => Some("marginal"),
            Self::Relative => Some("relative"),
            Self::Default | Self::Load | Self::Cost => None,
        }
    }
}

/// A running router.
#[derive(Debug)]
pub(crate) struct Router {
    child: Child,
    folder: PathBuf,
    /// host:port of the API
    api: String,
    /// host:port of the admin listener
    pub(crate) admin: String,
}

impl Drop for Router {
    fn drop(&mut self) {
        // it may have ended by itself; either way nothing is left behind
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Router {
    /// Starts ramjet in front of these engines and waits until it says that it is up.
    pub(crate) async fn start(
        program: &Path,
        policy: Policy,
        engines: &[String],
        extra: &[(String, String)],
    ) -> Result<Self, String> {
        if matches!(policy, Policy::Cost | Policy::Default) {
            let cost = json!({"routing": {"policy": "cost"}});
            let settings = if policy == Policy::Cost { cost } else { json!({}) };
            return Self::start_with(program, engines, settings, extra).await;
        }
        Self::spawn(program, |command, [api, admin], _| {
            command.env("RJ_UPSTREAM", engines.join(",")).env("RJ_API_ADDR", api).env("RJ_METRICS_ADDR", admin);
            command.env("RJ_AFFINITY", if policy == Policy::Load { "off" } else { "on" });
            if let Some(basis) = policy.basis() {
                command.env("RJ_ROUTE_AFFINITY_BASIS", basis);
            }
            command.envs(extra.iter().map(|(name, value)| (name, value)));
            Ok(())
        })
        .await
    }

    /// The same with a configuration file of these settings, to which addresses and engines are added.
    pub(crate) async fn start_with(
        program: &Path,
        engines: &[String],
        mut settings: Value,
        extra: &[(String, String)],
    ) -> Result<Self, String> {
        let replicas: Vec<_> = engines.iter().map(|url| json!({"url": url})).collect();
        Self::spawn(program, |command, [api, admin], folder| {
            settings["listen"] = json!({"api": [api], "admin": admin});
            settings["fleet"] = json!({"replicas": replicas});
            command.envs(extra.iter().map(|(name, value)| (name, value)));
            with_file(command, folder, &settings)
        })
        .await
    }

    async fn spawn(
        program: &Path,
        set_up: impl FnOnce(&mut Command, [&str; 2], &Path) -> Result<(), String>,
    ) -> Result<Self, String> {
        let (api, admin) = (lease()?, lease()?);
        let folder = folder()?;
        let log = File::create(folder.join("log")).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).current_dir(&folder);
        forget_settings(&mut command);
        set_up(&mut command, [&api, &admin], &folder)?;
        let child = command.spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        let mut router = Self { child, folder, api, admin };
        router.wait_until_up().await?;
        Ok(router)
    }

    /// The same with a whole configuration, to which addresses are added.
    pub(crate) async fn configured(program: &Path, mut config: Value) -> Result<Self, String> {
        Self::spawn(program, |command, [api, admin], folder| {
            config["listen"] = json!({"api": [api], "admin": admin});
            with_file(command, folder, &config)
        })
        .await
    }

    /// Where the API is.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.api)
    }

    async fn wait_until_up(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().map_err(|error| format!("ramjet: {error}"))? {
                return Err(format!("ramjet ended at its start ({status}): {}", self.last_words()));
            }
            let mut client = Client::default();
            if matches!(tokio::time::timeout(LOOK_AGAIN * 10, client.get(&self.api, "/health")).await, Ok(Ok(_))) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("ramjet did not answer GET /health with 200: {}", self.last_words()));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Its process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Processor time it has used so far, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        cpu_seconds(&self.child.id().to_string())
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        match lines[lines.len().saturating_sub(5)..].join(" | ") {
            words if words.is_empty() => "it said nothing".to_owned(),
            words => words,
        }
    }
}

/// Gives a process a configuration file. JSON is YAML, so it needs no writer of its own.
fn with_file(command: &mut Command, folder: &Path, config: &Value) -> Result<(), String> {
    let file = folder.join("ramjet.yaml");
    std::fs::write(&file, config.to_string()).map_err(|error| format!("{}: {error}", file.display()))?;
    command.arg("-c").arg(file);
    Ok(())
}

/// Takes the router's settings out of the environment that a process gets.
fn forget_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let ours = name.to_str().is_some_and(|name| ["RJ_", "MD_", "DS4_"].iter().any(|p| name.starts_with(p)));
        if ours {
            command.env_remove(name);
        }
    }
}

/// An address that was free a moment ago.
fn lease() -> Result<String, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| format!("no free port: {error}"))?;
    listener.local_addr().map(|address| address.to_string()).map_err(|error| format!("no free port: {error}"))
}

fn folder() -> Result<PathBuf, String> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // ordering: only distinctness matters
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("ramjet-bench-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

/// The router to test: what was asked for, or the binary beside ours.
pub(crate) fn program(asked: Option<PathBuf>) -> Result<PathBuf, String> {
    let path = match asked {
        Some(path) => path,
        None => std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("ramjet"),
    };
    // absolute, because the process runs in a folder of its own
    path.canonicalize().map_err(|error| format!("{}: {error} (--ramjet PATH says where it is)", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_a_word() {
        for word in ["default", "load", "absolute", "marginal", "relative", "cost"] {
            assert!(Policy::parse(word).is_some(), "{word}");
        }
        assert_eq!(Policy::parse("best"), None);
    }

    #[test]
    fn leased_addresses_can_be_bound() {
        assert!(TcpListener::bind(lease().unwrap()).is_ok());
    }
}
