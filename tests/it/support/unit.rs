//! A ramjet that is upgraded again and again: one configuration, one folder, and whichever processes come and go.

use super::ramjet::{command, lease};
use super::{client, until};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Processes that follow each other on the same addresses; all are killed on drop.
pub(crate) struct Unit {
    pub(crate) folder: PathBuf,
    pub(crate) api: SocketAddr,
    pub(crate) admin: SocketAddr,
    first: Mutex<Option<Child>>,
    processes: Mutex<Vec<u32>>,
    /// What becomes of the configuration's text before it is written.
    alter: Box<dyn Fn(String) -> String + Send + Sync>,
    /// What its processes find in their environment.
    env: Vec<(String, String)>,
}

/// What `ramjet upgrade` brought.
pub(crate) struct Upgraded {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) errors: String,
}

impl Unit {
    /// Starts the first process in front of `replicas`, as the file writes them; `more` is further YAML, `server` further
    /// keys of that section, such as `grace: 1s`.
    pub(crate) async fn start(replicas: &[String], server: &str, more: &str) -> Unit {
        Unit::new().started(replicas, server, more).await
    }

    /// The same in a folder that is there already.
    pub(crate) async fn started(self, replicas: &[String], server: &str, more: &str) -> Unit {
        self.started_as(&[], replicas, server, more).await
    }

    /// The same with arguments for the process.
    pub(crate) async fn started_as(self, arguments: &[&str], replicas: &[String], server: &str, more: &str) -> Unit {
        self.write(replicas, server, more);
        let mut command = command();
        command
            .envs(self.env.iter().cloned())
            .args(arguments)
            .arg("-c")
            .arg(self.file())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = command.stderr(self.log("first")).spawn().unwrap();
        self.processes.lock().unwrap().push(child.id());
        *self.first.lock().unwrap() = Some(child);
        self.serves().await;
        self
    }

    /// The same with another text for a configuration.
    pub(crate) fn altered(self, alter: impl Fn(String) -> String + Send + Sync + 'static) -> Unit {
        // fields of what has a destructor cannot be moved out of it
        let mut unit = self;
        unit.alter = Box::new(alter);
        unit
    }

    /// The same with a variable for its processes.
    pub(crate) fn with_env(self, name: &str, value: &str) -> Unit {
        let mut unit = self;
        unit.env.push((name.to_owned(), value.to_owned()));
        unit
    }

    /// A folder and addresses, nothing running.
    pub(crate) fn new() -> Unit {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ramjet-it-unit-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let (first, processes, alter) = (Mutex::default(), Mutex::default(), Box::new(std::convert::identity));
        Unit { folder, api: lease(), admin: lease(), first, processes, alter, env: Vec::new() }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join("ramjet.yaml")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("upgrade.sock")
    }

    fn log(&self, name: &str) -> std::fs::File {
        std::fs::File::options().append(true).create(true).open(self.folder.join(name)).unwrap()
    }

    /// Writes the configuration.
    pub(crate) fn write(&self, replicas: &[String], server: &str, more: &str) {
        let replicas: String = replicas.iter().map(|replica| format!("    - {replica}\n")).collect();
        let text = format!(
            "fleet:\n  replicas:\n{replicas}listen: {{ api: [\"{}\"], admin: \"{}\" }}\nserver: {{ upgrade_sock: \
             \"{}\", pid_file: \"{}\", {server} }}\n{more}\n",
            self.api,
            self.admin,
            self.socket().display(),
            self.folder.join("pid").display(),
        );
        std::fs::write(self.file(), (self.alter)(text)).unwrap();
    }

    /// Waits until a process serves and can be followed by another one.
    pub(crate) async fn serves(&self) {
        let answers = || async {
            client::get(self.api, "/health").await.is_ok()
                && client::get(self.admin, "/livez").await.is_ok()
                && self.socket().exists()
        };
        until("a process serves and waits for its successor", answers).await;
    }

    /// `ramjet upgrade`, with further arguments.
    pub(crate) async fn upgrade(&self, arguments: &[&str]) -> Upgraded {
        let mut command = command();
        command
            .envs(self.env.iter().cloned())
            .arg("upgrade")
            .arg("-c")
            .arg(self.file())
            .args(arguments)
            .stdin(Stdio::null());
        let (out, errors) = (self.folder.join("out"), self.folder.join("errors"));
        for file in [&out, &errors] {
            std::fs::write(file, "").unwrap();
        }
        // files: the successor inherits these and lives on
        command.stdout(self.log("out")).stderr(self.log("errors"));
        let mut child = command.spawn().unwrap();
        let status = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
        let read = |file| std::fs::read_to_string(file).unwrap();
        let upgraded = Upgraded { status, out: read(out), errors: read(errors) };
        self.processes.lock().unwrap().extend(upgraded.process());
        upgraded
    }

    /// The exit code of the first process, once it has ended.
    pub(crate) fn first_ended(&self) -> Option<i32> {
        let mut first = self.first.lock().unwrap();
        first.as_mut().unwrap().try_wait().unwrap().map(|status| status.code().unwrap_or(-1))
    }

    /// The process that was started first.
    pub(crate) fn first(&self) -> u32 {
        self.processes.lock().unwrap()[0]
    }

    /// The process that was started last.
    pub(crate) fn last(&self) -> u32 {
        *self.processes.lock().unwrap().last().unwrap()
    }

    /// Takes a process into the care of this one.
    pub(crate) fn adopt(&self, process: u32) {
        self.processes.lock().unwrap().push(process);
    }
}

impl Upgraded {
    /// The process that serves now.
    pub(crate) fn process(&self) -> Option<u32> {
        let (_, rest) = self.out.split_once("(process ")?;
        rest.split(')').next()?.parse().ok()
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        for process in self.processes.lock().unwrap().iter().rev() {
            let is_ours = std::fs::read_to_string(format!("/proc/{process}/cmdline"))
                .is_ok_and(|line| line.contains(&*self.folder.to_string_lossy()));
            if is_ours {
                let _gone = std::process::Command::new("kill").args(["-9", &process.to_string()]).output();
            }
        }
        if let Some(mut first) = self.first.lock().unwrap().take() {
            let _reaped = first.wait();
        }
        if !std::thread::panicking() {
            let _gone = std::fs::remove_dir_all(&self.folder);
        }
    }
}
