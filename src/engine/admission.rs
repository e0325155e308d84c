//! Asks an engine who it is, where a replica is configured to be a certain one. What follows is `policy::admission`'s
//! business.
//!
//! It is asked at each readiness probe, and at once after something happened that another engine may have caused: a
//! request that was not connected or was lost, or the end of a *watch*, a connection to the engine on which nothing is
//! ever said. It ends with the process, before another one can listen there; where engines close silent connections,
//! they are asked a little more often.
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
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
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
/// The least time between two questions while an engine does not say who it is, or ends every watch.
const PAUSE: Duration = Duration::from_secs(1);

/// How it is asked.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionSpec {
    /// For all questions together.
    pub timeout: Duration,
    /// How often in a row an engine may be late before it is no longer believed.
    pub failures: u32,
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

    /// Asks a replica's engine who it is, if anything is asked of it.
    pub(super) async fn check(&self, replica: &Replica) {
        let Some(identity) = replica.identity() else { return };
        let question = replica.ask_identity();
        let asked = timeout(self.spec.timeout, self.advertised(replica, identity)).await;
        let seen = match asked {
            Ok(Ok(advertised)) => Seen::Said(identity.judge(&advertised)),
            Ok(Err(NoAnswer(seen))) => seen,
            Err(_) => Seen::Late,
        };
        replica.identified(question, seen, self.spec.failures, self.clock.now());
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
        loop {
            self.check(replica).await;
            let began = Instant::now();
            self.until_in_doubt(replica).await;
            if began.elapsed() < PAUSE {
                sleep(PAUSE).await;
            }
        }
    }

    /// Returns when another engine may be there.
    async fn until_in_doubt(&self, replica: &Replica) {
        let Some(address) = replica.address() else { return };
        let Ok(Ok(mut silent)) = timeout(self.spec.timeout, TcpStream::connect(address)).await else {
            return replica.doubt_identity(self.clock.now());
        };
        let mut bytes = [0; 64];
        loop {
            match timeout(LOOK, silent.read(&mut bytes)).await {
                Ok(Ok(0) | Err(_)) => return,
                _ if replica.is_unidentified() || replica.address() != Some(address) => return,
                _ => {}
            }
        }
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
