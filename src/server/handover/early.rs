//! A listening service that stops accepting as soon as another process accepts, while its connections may stay longer; and
//! that says when all of its listeners are there.

use crate::telemetry::outlet;
use async_trait::async_trait;
use pingora_core::apps::ServerApp;
use pingora_core::server::{ListenFds, ShutdownWatch};
use pingora_core::services::Service as AnyService;
use pingora_core::services::listening::Service;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;

/// The service, told of a shutdown when another process accepts or when there is one.
pub(in crate::server) struct Early<A> {
    service: Service<A>,
    /// Each says whether it may begin; it begins when all do.
    opens: Vec<watch::Receiver<bool>>,
    /// Whether another process accepts.
    over: watch::Receiver<bool>,
    /// Where connections look for the shutdown of the process, where they are to wait for it.
    shutdown: Arc<OnceLock<ShutdownWatch>>,
    /// Whether it accepts at all of its addresses.
    bound: watch::Sender<bool>,
}

impl<A> Early<A> {
    /// The service, which stops accepting when `over` says so; `shutdown` is where connections look for the end.
    pub(in crate::server) fn new(
        service: Service<A>,
        over: watch::Receiver<bool>,
        shutdown: Arc<OnceLock<ShutdownWatch>>,
    ) -> Self {
        Early { service, opens: Vec::new(), over, shutdown, bound: watch::Sender::new(false) }
    }

    /// The same, which begins only when `opens` says so, too.
    pub(in crate::server) fn opening(mut self, opens: watch::Receiver<bool>) -> Self {
        self.opens.push(opens);
        self
    }

    /// Becomes true when it accepts at all of its addresses.
    pub(in crate::server) fn bound(&self) -> watch::Receiver<bool> {
        self.bound.subscribe()
    }
}

#[async_trait]
impl<A: ServerApp + Send + Sync + 'static> AnyService for Early<A> {
    async fn start_service(&mut self, fds: Option<ListenFds>, mut shutdown: ShutdownWatch, listeners_per_fd: usize) {
        // nobody has set it before
        let _set = self.shutdown.set(shutdown.clone());
        for opens in &mut self.opens {
            tokio::select! {
                _ = opens.wait_for(|opens| *opens) => {}
                _ = shutdown.wait_for(|down| *down) => return,
            }
        }
        let (close, closes) = watch::channel(false);
        let mut over = self.over.clone();
        let first = async move {
            tokio::select! {
                _ = over.wait_for(|over| *over) => {}
                _ = shutdown.wait_for(|down| *down) => {}
            }
            close.send_replace(true);
            // whoever still looks must find it
            close.closed().await;
        };
        let addresses = AnyService::listen_addresses(&self.service).unwrap_or_default();
        let table = fds.clone();
        let is_there = |address: &String| table.as_ref().is_none_or(|table| table.lock().get(address).is_some());
        let (bound, name) = (&self.bound, self.service.name().to_owned());
        let mut serving = pin!(self.service.start_service(fds, closes, listeners_per_fd));
        // it builds its listeners in one go and panics where one cannot be had: nobody would hear of that
        let watched = poll_fn(|context| {
            let Ok(polled) = catch_unwind(AssertUnwindSafe(|| serving.as_mut().poll(context))) else {
                eprintln!("ramjet: the {name} listener cannot be opened: {}", addresses.join(", "));
                outlet::exit(1);
            };
            if polled.is_pending() && !*bound.borrow() && addresses.iter().all(is_there) {
                bound.send_replace(true);
            }
            polled
        });
        tokio::join!(watched, first);
    }

    fn name(&self) -> &str {
        self.service.name()
    }

    fn threads(&self) -> Option<usize> {
        self.service.threads
    }

    fn listen_addresses(&self) -> Option<Vec<String>> {
        AnyService::listen_addresses(&self.service)
    }
}
