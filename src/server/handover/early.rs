//! A listening service that stops accepting as soon as another process accepts, while its connections may stay longer.

use async_trait::async_trait;
use pingora_core::apps::ServerApp;
use pingora_core::server::{ListenFds, ShutdownWatch};
use pingora_core::services::Service as AnyService;
use pingora_core::services::listening::Service;
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;

/// The service, told of a shutdown when `over` says so or when there is one.
pub(in crate::server) struct Early<A> {
    pub(in crate::server) service: Service<A>,
    /// Whether it may begin, where it is not to begin at once.
    pub(in crate::server) opens: Option<watch::Receiver<bool>>,
    /// Whether another process accepts.
    pub(in crate::server) over: watch::Receiver<bool>,
    /// Where connections look for the shutdown of the process, where they are to wait for it.
    pub(in crate::server) shutdown: Arc<OnceLock<ShutdownWatch>>,
}

#[async_trait]
impl<A: ServerApp + Send + Sync + 'static> AnyService for Early<A> {
    async fn start_service(&mut self, fds: Option<ListenFds>, mut shutdown: ShutdownWatch, listeners_per_fd: usize) {
        // nobody has set it before
        let _set = self.shutdown.set(shutdown.clone());
        if let Some(opens) = &mut self.opens {
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
        tokio::join!(self.service.start_service(fds, closes, listeners_per_fd), first);
    }

    fn name(&self) -> &str {
        self.service.name()
    }

    fn threads(&self) -> Option<usize> {
        self.service.threads
    }

    fn listen_addresses(&self) -> Option<Vec<String>> {
        self.service.listen_addresses()
    }
}
