//! The group of routers that this one belongs to, from its settings.

use super::handover::Early;
use crate::cluster::keys::Keys;
use crate::cluster::store::Site;
use crate::cluster::{Cluster, Membership};
use crate::config::{Config, Loaded};
use crate::fleet::Fleet;
use crate::telemetry::metrics::Metrics;
use pingora_core::server::Server;
use pingora_core::services::background::GenBackgroundService;
use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;

/// The keys of the group, where there is one.
pub(super) fn keys(loaded: &Loaded) -> Option<Keys> {
    let Config { cluster, routing, .. } = &loaded.config;
    let group = loaded.group.as_ref()?;
    Some(Keys::new(group.secret.expose().as_bytes(), &cluster.group, routing.block_bytes))
}

/// What keeps this router in its group; `knows` if it knows what a process before it knew, of those that are called `before`.
pub(super) fn cluster(
    loaded: &Loaded,
    fleet: &Arc<Fleet>,
    metrics: &Arc<Metrics>,
    (knows, before): (bool, Vec<u64>),
) -> Option<Arc<Cluster>> {
    let settings = &loaded.config.cluster;
    let group = loaded.group.as_ref()?;
    let tls = group.store.is_tls.then(|| client(&group.issuers));
    let site = Site {
        host: group.store.host.clone(),
        port: group.store.port,
        // the versions that the provider offers are those that it was built with: this cannot fail
        tls: tls.transpose().inspect_err(|e| log::error!("the store cannot be reached by TLS: {e}")).ok()?,
        user: settings.user.clone(),
        password: group.password.as_ref().map(|password| password.expose().to_owned()),
        database: group.store.database.into(),
        group: settings.group.clone(),
    };
    let membership = Membership { site, keys: keys(loaded)?, memory: settings.memory, knows, before };
    Some(Arc::new(Cluster::new(fleet.clone(), metrics.clone(), membership)))
}

/// The service that listens when this router knows what its group knows.
pub(super) fn opening<A>(api: Early<A>, cluster: Option<&Arc<Cluster>>) -> Early<A> {
    match cluster {
        Some(cluster) => api.opening(cluster.warm()),
        None => api,
    }
}

/// Keeps this router in its group.
pub(super) fn add(server: &mut Server, cluster: Option<Arc<Cluster>>) {
    if let Some(cluster) = cluster {
        server.add_service(GenBackgroundService::new("cluster".to_owned(), cluster));
    }
}

fn client(issuers: &[Vec<u8>]) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    // each was read before
    roots.add_parsable_certificates(issuers.iter().map(|der| der.clone().into()));
    let builder =
        ClientConfig::builder_with_provider(Arc::new(default_provider())).with_safe_default_protocol_versions()?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}
