//! Asks an engine who it is, where a replica is configured to be a certain one. What follows is `policy::admission`'s
//! business.
//!
//! It is asked at each readiness probe, and at once after something happened that another engine may have caused: a
//! request that was not connected or was lost, or the end of a *watch*, a connection to the engine on which nothing is
//! ever said. It ends with the process, before another one can listen there, so the replica gets nothing until that was
//! asked; who connects anew looks at the watch first (`proxy::identity`). Some engines close silent connections after a
//! while: where that has happened twice and it was the same engine each time, it is only asked, a little more often, and
//! new connections wait for that.
//!
//! An engine that is late because it is busy is no other one: while requests are completed there, only what it says, or
//! that it cannot be reached, counts.
//!
//! Only what was asked for is fetched. An answer that is no answer (404, not JSON) says nothing, which is a difference;
//! one that says *not yet* (429, 5xx) or none in time is late.

use super::exchange::{Question, exchange};
use super::tend::tend;
use crate::api::catalogue::Catalogue;
use crate::api::json::Cursor;
use crate::api::sha256::sha256;
use crate::fleet::Fleet;
use crate::fleet::clock::Clock;
use crate::fleet::replica::Replica;
use crate::fleet::transport::connector;
use crate::policy::admission::{Advertised, Identity, Seen};
use async_trait::async_trait;
use http::Method;
use pingora_core::connectors::http::Connector;
use pingora_core::protocols::TcpKeepalive;
use pingora_core::protocols::l4::ext::set_tcp_keepalive;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use std::io;
use std::net::{self, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// Where engines list their models.
const MODELS: &str = "/v1/models";
/// Where engines tell their versions, and under which name: vLLM, SGLang (new and old), llama.cpp. The first that is
/// there counts.
const VERSIONS: [(&str, &str); 4] =
    [("/version", "version"), ("/server_info", "version"), ("/get_server_info", "version"), ("/props", "build_info")];

/// How often it is looked whether an engine is to be asked again.
const LOOK: Duration = Duration::from_millis(500);
/// The least time between two questions while an engine does not say who it is, ends every watch, or is doubted again and
/// again.
const PAUSE: Duration = Duration::from_secs(1);
/// Whose engine has closed so many silent connections has the habit.
const HABIT: u32 = 2;

/// Whether a machine is still there where nothing is said.
const PROBES: TcpKeepalive = TcpKeepalive {
    idle: Duration::from_secs(2),
    interval: Duration::from_secs(1),
    count: 3,
    #[cfg(target_os = "linux")]
    user_timeout: Duration::ZERO,
};

/// How it is asked.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionSpec {
    /// For all questions together.
    pub timeout: Duration,
    /// How often in a row an engine may be late before it is no longer believed.
    pub failures: u32,
    /// It may be late for so long after a request was completed there: it is busy.
    pub suppress_after_success: Duration,
}

/// Asks for identities.
pub(super) struct Admission {
    connector: Connector,
    clock: Clock,
    spec: AdmissionSpec,
}

/// Why a question brought nothing.
struct NoAnswer(Seen);

impl Admission {
    pub(super) fn new(clock: Clock, spec: AdmissionSpec) -> Self {
        Admission { connector: connector(), clock, spec }
    }

    /// Asks a replica's engine who it is, if anything is asked of it; whether it said that it is the one.
    pub(super) async fn check(&self, replica: &Replica) -> bool {
        let Some(identity) = replica.identity() else { return false };
        let question = replica.ask_identity();
        let asked = timeout(self.spec.timeout, self.advertised(replica, identity)).await;
        let seen = match asked {
            Ok(Ok(advertised)) => Seen::Said(identity.judge(&advertised)),
            Ok(Err(NoAnswer(seen))) => seen,
            Err(_) => Seen::Late,
        };
        let lately = self.spec.suppress_after_success.as_secs_f64() * 1000.0;
        if seen == Seen::Late && !replica.is_unidentified() && self.clock.now() - replica.completed() < lately {
            replica.suppress();
            return false;
        }
        let is_it = matches!(seen, Seen::Said(Ok(())));
        replica.identified(question, seen, self.spec.failures, self.clock.now());
        is_it
    }

    async fn advertised(&self, replica: &Replica, identity: &Identity) -> Result<Advertised, NoAnswer> {
        let mut out = Advertised::default();
        if identity.model.is_some() || identity.context.is_some() {
            let listed = self.get(replica, MODELS).await?.and_then(|body| Catalogue::read(&body).ok());
            let owned = |(name, length): (&str, Option<u64>)| (name.to_owned(), length);
            out.models = listed.iter().flat_map(Catalogue::lengths).map(owned).collect();
        }
        if identity.version.is_some() {
            for (path, name) in VERSIONS {
                out.version = self.get(replica, path).await?.and_then(|body| member(&body, name));
                if out.version.is_some() {
                    break;
                }
            }
        }
        if let Some(document) = &identity.document {
            out.document = self.get(replica, &document.path).await?.map(|body| sha256(&body));
        }
        Ok(out)
    }

    /// A page, if the engine has it.
    async fn get(&self, replica: &Replica, path: &str) -> Result<Option<Vec<u8>>, NoAnswer> {
        let question = Question { method: Method::GET, path, body: String::new() };
        match exchange(&self.connector, replica, question).await {
            Ok((200..=299, body)) => Ok(Some(body)),
            Ok((429 | 500..=599, _)) => Err(NoAnswer(Seen::Late)),
            Ok(_) => Ok(None),
            Err(_) => Err(NoAnswer(Seen::Gone)),
        }
    }
}

/// Keeps an eye on the engines of replicas that have an identity.
pub struct AdmissionWatch {
    fleet: Arc<Fleet>,
    admission: Admission,
}

impl AdmissionWatch {
    /// A watch over the replicas of `fleet`.
    pub fn new(fleet: Arc<Fleet>, spec: AdmissionSpec) -> Self {
        AdmissionWatch { admission: Admission::new(fleet.clock(), spec), fleet }
    }
}

impl Admission {
    async fn watch(&self, replica: &Replica) {
        // watches that their engine has ended although it was the same one afterwards
        let mut closed = 0;
        // when a doubt was followed at once the last time
        let mut hurried: Option<Instant> = None;
        loop {
            let began = Instant::now();
            let silent = self.begin_watch(replica).await;
            // after that: who answers now is whom it watches, or it ends
            let is_it = self.check(replica).await;
            let is_same = !replica.is_unidentified() && replica.refusal().is_none();
            closed = if is_same { closed } else { 0 };
            let has_ended = match silent {
                // believed for what it said before, and late now: it is asked again soon
                Some(_) if is_same && !is_it => None,
                Some(silent) => {
                    if is_it {
                        replica.watch(&silent.held);
                    }
                    Some(self.until_in_doubt(replica, silent, closed >= HABIT).await)
                }
                None => None,
            };
            closed += u32::from(has_ended == Some(true));
            let may_hurry = hurried.is_none_or(|at| at.elapsed() >= PAUSE);
            if has_ended == Some(false) && is_same && may_hurry {
                hurried = Some(Instant::now());
            } else {
                sleep(PAUSE.saturating_sub(began.elapsed())).await;
            }
        }
    }

    /// Connects to where the engine is now; without that it may be another one.
    async fn begin_watch(&self, replica: &Replica) -> Option<Silent> {
        let address = replica.address()?;
        let silent = match timeout(self.spec.timeout, TcpStream::connect(address)).await {
            Ok(Ok(connection)) => Silent::new(connection, address).ok(),
            _ => None,
        };
        if silent.is_none() {
            replica.doubt_identity(self.clock.now());
        }
        silent
    }

    /// Returns when another engine may be there; whether it has ended the connection, which is a reason for doubt unless
    /// it is a habit.
    async fn until_in_doubt(&self, replica: &Replica, mut silent: Silent, habit: bool) -> bool {
        let mut bytes = [0; 64];
        while !replica.is_unidentified() && replica.address() == Some(silent.address) {
            tokio::select! {
                read = timeout(LOOK, silent.connection.read(&mut bytes)) => if let Ok(Ok(0) | Err(_)) = read {
                    if !habit {
                        replica.doubt_identity(self.clock.now());
                    }
                    return true;
                },
                () = replica.doubted() => {}
            }
        }
        false
    }
}

/// A connection on which nothing is said, and where it leads.
struct Silent {
    connection: TcpStream,
    /// The same, for those who only look whether it stands.
    held: Arc<net::TcpStream>,
    address: SocketAddr,
}

impl Silent {
    fn new(connection: TcpStream, address: SocketAddr) -> io::Result<Self> {
        // a machine that is gone ends nothing by itself
        set_tcp_keepalive(&connection, &PROBES).map_err(|_| io::ErrorKind::Unsupported)?;
        let held = connection.into_std()?;
        let connection = TcpStream::from_std(held.try_clone()?)?;
        Ok(Silent { connection, held: Arc::new(held), address })
    }
}

#[async_trait]
impl BackgroundService for AdmissionWatch {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let watch = |replica: Arc<Replica>| async move {
            if replica.identity().is_some() {
                self.admission.watch(&replica).await;
            }
        };
        tokio::select! {
            () = tend(&self.fleet, watch) => {}
            () = self.fleet.until_retired() => {}
            _ = shutdown.changed() => {}
        }
    }
}

/// A text among the members of an object.
fn member(document: &[u8], name: &str) -> Option<String> {
    let mut found = None;
    let read = Cursor::new(document).object(|key, value| {
        if key.is(name) {
            found = value.clone().string().ok().map(|text| text.text());
        }
        value.skip().map(drop)
    });
    read.ok().and(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_a_text_of_the_outermost_object() {
        let of = |text: &str| member(text.as_bytes(), "version");
        assert_eq!(of(r#"{"a":{"version":"9"},"version":"0.32.0"}"#).as_deref(), Some("0.32.0"));
        for text in ["", "[]", "{}", r#"{"version":7}"#, r#"{"version":"1""#, r#"{"a":{"version":"9"}}"#] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
