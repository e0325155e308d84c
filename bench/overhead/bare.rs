//! `ramjet-bench bare`: the least that a proxy on Pingora can be. It reads no body and takes engines in turn: what
//! anything built on Pingora costs at least.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;
use clap::Args;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_error::{Error, ErrorType, Result};
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};

use crate::load::client::authority;

/// A Pingora proxy that does nothing but pass on.
#[derive(Args, Debug)]
pub(crate) struct BareArgs {
    /// where it listens; port 0 is any
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// engines, with commas between them
    #[arg(long, required = true, value_delimiter = ',')]
    upstream: Vec<String>,
    /// threads of its runtime
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

struct Bare {
    engines: Vec<SocketAddr>,
    next: AtomicUsize,
}

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, (): &mut ()) -> Result<Box<HttpPeer>> {
        let turn = self.next.fetch_add(1, Relaxed) % self.engines.len();
        let address = self.engines.get(turn).ok_or_else(|| Error::new(ErrorType::ConnectNoRoute))?;
        Ok(Box::new(HttpPeer::new(*address, false, String::new())))
    }
}

/// Runs until it is ended.
pub(crate) fn run(args: &BareArgs) -> Result<(), String> {
    let engines = args.upstream.iter().map(|url| {
        let host = authority(url)?;
        host.parse().map_err(|_| format!("{url}: a numeric address is needed"))
    });
    let bare = Bare { engines: engines.collect::<Result<_, String>>()?, next: AtomicUsize::new(0) };
    let address = free(args.listen)?;
    let conf = ServerConf { threads: args.threads, ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    let mut service = http_proxy_service(&server.configuration, bare);
    service.add_tcp(&address.to_string());
    server.add_service(service);
    server.bootstrap();
    let mut out = std::io::stdout().lock();
    writeln!(out, "listening http://{address}").and_then(|()| out.flush()).map_err(|e| e.to_string())?;
    drop(out);
    server.run_forever()
}

/// Pingora does not tell which port it was given.
fn free(address: SocketAddr) -> Result<SocketAddr, String> {
    if address.port() != 0 {
        return Ok(address);
    }
    TcpListener::bind(address).and_then(|listener| listener.local_addr()).map_err(|error| format!("{address}: {error}"))
}
