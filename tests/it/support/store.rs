//! A real Valkey or Redis, and what may stand between it and a router.

use super::ramjet::{lease, tempdir};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A running store; killed on drop.
pub(crate) struct Store {
    child: Child,
    pub(crate) addr: SocketAddr,
}

/// The program, if there is any; else says so, loudly: such a test proves nothing.
pub(crate) fn program() -> Option<PathBuf> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/store/install");
    let found = Command::new(script).output().unwrap();
    let path = String::from_utf8(found.stdout).unwrap();
    if found.status.success() && !path.trim().is_empty() {
        return Some(path.trim().into());
    }
    eprintln!("SKIPPED: neither Valkey nor Redis can be had here\n{}", String::from_utf8_lossy(&found.stderr));
    None
}

impl Store {
    pub(crate) async fn start(flags: &[&str]) -> Option<Store> {
        Self::start_at(lease(), flags).await
    }

    /// With further flags, at an address that one may have had before.
    pub(crate) async fn start_at(addr: SocketAddr, flags: &[&str]) -> Option<Store> {
        let mut command = Command::new(program()?);
        // where it speaks TLS, it speaks nothing else
        let port =
            if flags.contains(&"--tls-cert-file") { ["--port", "0", "--tls-port"] } else { ["--save", "", "--port"] };
        command
            .args(port)
            .arg(addr.port().to_string())
            .args(["--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(tempdir());
        command.args(flags).stdin(Stdio::null()).stdout(Stdio::null());
        let store = Store { child: command.spawn().unwrap(), addr };
        super::until("the store listens", || async { TcpStream::connect(addr).await.is_ok() }).await;
        Some(store)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// What it says to a command.
    pub(crate) async fn say(&self, command: &[&[u8]]) -> String {
        let mut out = format!("*{}\r\n", command.len()).into_bytes();
        for part in command {
            out.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
            out.extend_from_slice(part);
            out.extend_from_slice(b"\r\n");
        }
        let mut stream = TcpStream::connect(self.addr).await.unwrap();
        stream.write_all(&out).await.unwrap();
        let mut answer = vec![0; 1 << 16];
        let came = stream.read(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[..came]).into_owned()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Something on the way to a store that takes its time.
pub(crate) struct Slow {
    pub(crate) addr: SocketAddr,
    /// Milliseconds that an answer takes; from [`Slow::NEVER`] on it does not come.
    pub(crate) delay: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Slow {
    pub(crate) const NEVER: u64 = 1_000_000;

    pub(crate) async fn before(store: SocketAddr, delay: u64) -> Slow {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, delay) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(delay)));
        let waits = delay.clone();
        let task = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let waits = waits.clone();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(store).await?;
                    let ((mut from, mut to), (mut back, mut out)) = (client.split(), server.split());
                    let there = tokio::io::copy(&mut from, &mut out);
                    let here = async {
                        let mut buffer = vec![0; 1 << 16];
                        loop {
                            let came = back.read(&mut buffer).await?;
                            tokio::time::sleep(Duration::from_millis(waits.load(Relaxed))).await;
                            if came == 0 || waits.load(Relaxed) >= Self::NEVER {
                                return std::io::Result::Ok(());
                            }
                            to.write_all(&buffer[..came]).await?;
                        }
                    };
                    tokio::select! { _ = there => Ok(()), done = here => done }
                });
            }
        });
        Slow { addr, delay, task }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.task.abort();
    }
}
