//! The ramjet process under test.

use super::client;
use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

/// Where leased ports are.
const PORTS: Range<u16> = 20_000..32_000;

/// A running ramjet; killed on drop.
pub(crate) struct Ramjet {
    child: Child,
    pub(crate) api: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// The configuration file, which is there only while it is needed.
    pub(crate) file: PathBuf,
}

/// How to start one.
#[derive(Clone, Copy)]
pub(crate) struct Start<'a> {
    /// Engines, one replica each; left out when `replicas` says more.
    pub(crate) upstreams: &'a [SocketAddr],
    /// Replicas as the file writes them.
    pub(crate) replicas: &'a [String],
    /// What stands below `fleet.discovery`, as YAML on one line.
    pub(crate) discovery: &'a str,
    /// YAML without `fleet`, `listen` and `health`; it may begin with further keys of `health`, indented by two.
    pub(crate) config: &'a str,
    /// Further keys of `fleet`, indented by two.
    pub(crate) fleet: &'a str,
    /// Further keys of `listen` as YAML, such as `tls: {…}`: clients are then not asked in clear text.
    pub(crate) listen: &'a str,
    pub(crate) env: &'a [(&'a str, &'a str)],
    /// Where clients connect, if the environment must know it.
    pub(crate) api: Option<SocketAddr>,
    /// Where the admin listener is, if it is not to be on loopback.
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) probe_path: &'a str,
    pub(crate) probe_every: &'a str,
}

impl Default for Start<'_> {
    fn default() -> Self {
        Start {
            upstreams: &[],
            replicas: &[],
            discovery: "{}",
            config: "",
            fleet: "",
            listen: "",
            env: &[],
            api: None,
            admin: None,
            probe_path: "/v1/models",
            probe_every: "100ms",
        }
    }
}

/// A port that nobody else has as long as this test runs. The system gives out none below 32768 to whoever asks for any or
/// connects, and each lease holds a name of its port, which another test would find taken.
pub(crate) fn lease() -> SocketAddr {
    static LEASED: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    let chance = RandomState::new();
    let lease = |n: u32| {
        let port = PORTS.start + u16::try_from(chance.hash_one(n) % PORTS.len() as u64).unwrap();
        let name = unix::SocketAddr::from_abstract_name(format!("ramjet-port-{port}")).unwrap();
        let held = UnixListener::bind_addr(&name).ok()?;
        let addr = TcpListener::bind(("127.0.0.1", port)).ok()?.local_addr().unwrap();
        LEASED.lock().unwrap().push(held);
        Some(addr)
    };
    (0..10_000).find_map(lease).expect("no port is free")
}

/// The binary with an environment that holds none of its settings.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ramjet"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RJ_") {
            command.env_remove(name);
        }
    }
    command
}

impl Ramjet {
    /// Starts ramjet in front of `upstreams` with defaults and fast probes.
    pub(crate) async fn start(upstreams: &[SocketAddr]) -> Ramjet {
        Self::start_with(Start { upstreams, ..Start::default() }).await
    }

    /// Starts ramjet and waits until it answers.
    pub(crate) async fn start_with(start: Start<'_>) -> Ramjet {
        let mut ramjet = Self::spawn(&start);
        let in_clear = start.listen.is_empty();
        super::until("ramjet answers on both listeners", || ramjet.answers(in_clear)).await;
        assert!(ramjet.ended().is_none(), "ramjet ended at its start");
        std::fs::remove_file(&ramjet.file).unwrap();
        ramjet
    }

    /// Starts ramjet and waits for nothing.
    pub(crate) fn spawn(start: &Start<'_>) -> Ramjet {
        let (api, admin) = (start.api.unwrap_or_else(lease), start.admin.unwrap_or_else(lease));
        let file = tempdir().join(format!("{}.yaml", admin.port()));
        std::fs::write(&file, configuration(start, api, admin)).unwrap();
        let mut command = command();
        command.arg("-c").arg(&file).envs(start.env.iter().copied()).stdin(Stdio::null());
        if std::env::var_os("RAMJET_TEST_LOG").is_none() {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        Ramjet { child: command.spawn().unwrap(), api, admin, file }
    }

    /// Whether it answers on both listeners; `in_clear`, or over TLS.
    pub(crate) async fn answers(&self, in_clear: bool) -> bool {
        let serves = if in_clear {
            client::get(self.api, "/health").await.is_ok()
        } else {
            tokio::net::TcpStream::connect(self.api).await.is_ok()
        };
        serves && client::get(self.admin, "/livez").await.is_ok()
    }

    /// Whether its first thread holds hangups back.
    pub(crate) fn holds_hangups(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        blocked.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 == 1))
    }

    /// Writes the file anew.
    pub(crate) fn rewrite(&self, start: &Start<'_>) {
        std::fs::write(&self.file, configuration(start, self.api, self.admin)).unwrap();
    }

    /// Has it read the file again.
    pub(crate) async fn reload(&self) -> client::Answer {
        self.order("/api/reload").await
    }

    /// Orders something by the admin API.
    pub(crate) async fn order(&self, path: &str) -> client::Answer {
        let mut h1 = client::H1::connect(self.admin).await.unwrap();
        h1.send(format!("POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-length: 0\r\n\r\n", self.admin).as_bytes()).await;
        h1.answer().await.unwrap()
    }

    /// A member of `/api/fleet` of the replica of this name.
    pub(crate) async fn of_replica(&self, name: &str, member: &str) -> Option<serde_json::Value> {
        let fleet = client::get(self.admin, "/api/fleet").await.unwrap().json();
        let replicas = fleet["replicas"].as_array().unwrap();
        replicas.iter().find(|replica| replica["name"] == name).map(|replica| replica[member].clone())
    }

    /// The names of the replicas, in the order of their ordinals.
    pub(crate) async fn names(&self) -> Vec<String> {
        let fleet = client::get(self.admin, "/api/fleet").await.unwrap().json();
        let replicas = fleet["replicas"].as_array().unwrap();
        replicas.iter().map(|replica| replica["name"].as_str().unwrap().to_owned()).collect()
    }

    /// The sum of a metric's series, over all labels.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        self.series(name).await.into_iter().map(|(_, value)| value).sum()
    }

    /// A metric's series: labels as text, value.
    pub(crate) async fn series(&self, name: &str) -> Vec<(String, f64)> {
        let page = client::get(self.admin, "/metrics").await.unwrap();
        let text = String::from_utf8(page.body).unwrap();
        text.lines()
            .filter_map(|line| {
                let (series, value) = line.rsplit_once(' ')?;
                let labels = series.strip_prefix(name)?;
                (labels.is_empty() || labels.starts_with('{')).then(|| (labels.to_owned(), value.parse().unwrap()))
            })
            .collect()
    }

    /// Waits until nothing is in flight, nothing waits and nothing is reserved.
    pub(crate) async fn settled(&self) {
        for gauge in [
            "ramjet_requests_inflight",
            "ramjet_queue_length",
            "ramjet_upstream_inflight",
            "ramjet_upstream_load_units",
        ] {
            super::until(gauge, || async { self.metric(gauge).await == 0.0 }).await;
        }
    }

    /// Memory that the process has in use, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Files and sockets that the process has open.
    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// How many it may have open from now on.
    pub(crate) fn allow_files(&self, most: usize) {
        let limit = format!("--nofile={most}:");
        let status = Command::new("prlimit").args(["--pid", &self.child.id().to_string(), &limit]).status().unwrap();
        assert!(status.success());
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// The exit code, once it has ended.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap().map(|status| status.code().unwrap_or(-1))
    }
}

impl Drop for Ramjet {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
        let _cleared = std::fs::remove_file(&self.file);
    }
}

fn configuration(start: &Start<'_>, api: SocketAddr, admin: SocketAddr) -> String {
    let plain = start.upstreams.iter().map(|u| format!("{{ url: \"http://{u}\" }}"));
    let replicas: String = plain.chain(start.replicas.iter().cloned()).map(|r| format!("    - {r}\n")).collect();
    format!(
        "fleet:\n  discovery: {}\n  replicas:{}\n{replicas}{}listen:\n  api: [\"{api}\"]\n  admin: \"{admin}\"\n  {}\nhealth:\n  \
         readiness: {{ interval: {}, timeout: 2s, path: \"{}\" }}\n{}\n",
        start.discovery,
        if replicas.is_empty() { " []" } else { "" },
        start.fleet,
        start.listen,
        start.probe_every,
        start.probe_path,
        start.config
    )
}

pub(crate) fn tempdir() -> PathBuf {
    let dir = std::env::temp_dir().join(format!("ramjet-it-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
