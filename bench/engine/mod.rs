//! `ramjet-bench engine`: simulated inference engines that speak the OpenAI API.
//!
//! A real engine needs a GPU and minutes to start; tests of routing need dozens of engines that are ready at once and
//! that can be told to fail. The model is small enough to reason about: a prefix cache in blocks ([`cache`]), serial
//! prefill in chunks and batched decode on virtual time ([`schedule`]), both pure. Around them: one task per engine that
//! turns real time into virtual time ([`sim`]), the routes ([`http`]) and the sockets ([`listen`]).

mod answer;
mod cache;
pub(crate) mod fault;
mod http;
mod listen;
pub(crate) mod params;
pub(crate) mod schedule;
pub(crate) mod sim;
pub(crate) mod text;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use clap::Args;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use fault::Fault;
use params::Params;
use sim::{Shared, Snapshot};

/// Simulated engines in one process.
#[derive(Args, Debug)]
pub(crate) struct EngineArgs {
    /// address of the first engine; the others take the ports that follow, or any with port 0
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// how many engines
    #[arg(long, default_value_t = 1)]
    count: u16,
    /// engines are called NAME-0, NAME-1, ...
    #[arg(long, default_value = "sim")]
    name: String,
    /// a fault from the start, of one engine or of all; may be repeated
    #[arg(
        long,
        value_name = "[NAME=]KIND[:NUMBER]",
        help = "a fault: none, refuse, freeze, 503[:RETRY_AFTER], reset[:EVENTS], error[:EVENTS], slow[:FACTOR]; may be repeated"
    )]
    fault: Vec<String>,
    /// a further listener for POST /NAME/fault and GET /NAME/stats that works while engines refuse connections
    #[arg(long)]
    control: Option<SocketAddr>,
    #[command(flatten)]
    params: Params,
}

/// A running engine.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

impl Running {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Engines that end when this is dropped.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) engines: Vec<Running>,
    tasks: JoinSet<()>,
}

impl Fleet {
    /// Binds and starts `count` engines.
    pub(crate) async fn start(first: SocketAddr, count: u16, name: &str, params: &Params) -> Result<Self, String> {
        params.check()?;
        let mut fleet = Self { engines: Vec::new(), tasks: JoinSet::new() };
        for index in 0..count {
            let mut address = first;
            if first.port() != 0 {
                let port = first.port().checked_add(index).ok_or("the ports do not fit below 65536")?;
                address.set_port(port);
            }
            let engine = fleet.add(address, format!("{name}-{index}"), params.clone()).await?;
            fleet.engines.push(engine);
        }
        Ok(fleet)
    }

    async fn add(&mut self, address: SocketAddr, name: String, params: Params) -> Result<Running, String> {
        let listener = TcpListener::bind(address).await.map_err(|error| format!("cannot bind {address}: {error}"))?;
        let address = listener.local_addr().map_err(|error| format!("{address}: {error}"))?;
        let (commands, inbox) = mpsc::unbounded_channel();
        let (fault, watch) = watch::channel(Fault::None);
        let received = AtomicU64::new(0);
        let snapshot = Mutex::new(Snapshot::default());
        let shared = Arc::new(Shared { name, params, commands, fault, received, snapshot });
        self.tasks.spawn(sim::run(Arc::clone(&shared), inbox, watch));
        self.tasks.spawn(listen::serve(Arc::clone(&shared), listener, address));
        Ok(Running { address, shared })
    }

    /// Applies `--fault` flags.
    pub(crate) fn set_faults(&self, flags: &[String]) -> Result<(), String> {
        for flag in flags {
            let (name, fault) = fault::from_flag(flag)?;
            let named = |engine: &&Running| name.as_ref().is_none_or(|name| *name == engine.shared.name);
            let mut chosen = self.engines.iter().filter(named).peekable();
            if chosen.peek().is_none() {
                return Err(format!("--fault {flag}: no engine of this name"));
            }
            for engine in chosen {
                engine.shared.fault.send_replace(fault);
            }
        }
        Ok(())
    }
}

/// Runs until it is dropped.
pub(crate) async fn run(args: EngineArgs) -> Result<(), String> {
    let mut fleet = Fleet::start(args.listen, args.count, &args.name, &args.params).await?;
    fleet.set_faults(&args.fault)?;
    for engine in &fleet.engines {
        say(&format!("listening {} {}", engine.shared.name, engine.url()))?;
    }
    if let Some(address) = args.control {
        let listener = TcpListener::bind(address).await.map_err(|error| format!("cannot bind {address}: {error}"))?;
        let address = listener.local_addr().map_err(|error| format!("{address}: {error}"))?;
        let engines = fleet.engines.iter().map(|engine| Arc::clone(&engine.shared)).collect();
        fleet.tasks.spawn(listen::control(engines, listener));
        say(&format!("control http://{address}"))?;
    }
    std::future::pending().await
}

/// One line on stdout at once: whoever started us waits for it.
fn say(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| format!("stdout: {error}"))
}

#[cfg(test)]
#[path = "shell_tests.rs"]
mod tests;
