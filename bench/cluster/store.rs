//! A Valkey or Redis for one run. It ends when this is dropped.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

const START_LIMIT: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// See the module header.
#[derive(Debug)]
pub(crate) struct Store {
    program: PathBuf,
    address: SocketAddr,
    child: Child,
}

impl Drop for Store {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Store {
    /// Starts one and waits until it listens.
    pub(crate) async fn start(program: &Path) -> Result<Self, String> {
        let lease = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let address = lease.map_err(|error| format!("no free port: {error}"))?;
        let store = Self { program: program.to_path_buf(), address, child: spawn(program, address)? };
        store.listens().await?;
        Ok(store)
    }

    /// Where routers find it.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        // it may have ended by itself
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again, empty, where it was.
    pub(crate) async fn restart(&mut self) -> Result<(), String> {
        self.child = spawn(&self.program, self.address)?;
        self.listens().await
    }

    async fn listens(&self) -> Result<(), String> {
        let begun = Instant::now();
        while TcpStream::connect(self.address).await.is_err() {
            if begun.elapsed() > START_LIMIT {
                return Err(format!("{} does not listen", self.program.display()));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }
}

fn spawn(program: &Path, address: SocketAddr) -> Result<Child, String> {
    let mut command = Command::new(program);
    command.arg("--port").arg(address.port().to_string()).args(["--bind", "127.0.0.1", "--save", ""]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))
}
