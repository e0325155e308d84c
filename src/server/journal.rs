//! The journal as a part of this process: opened before anybody is a member, written once there are threads.

use super::StartError;
use crate::config::Config;
use crate::fleet::Fleet;
use crate::telemetry::journal::Journal;
use crate::telemetry::metrics::Metrics;
use async_trait::async_trait;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use std::sync::Arc;

/// Opens the journal, if there is to be one; the fleet tells it everything from now on.
pub(super) fn open(config: &Config, fleet: &Fleet, metrics: &Arc<Metrics>) -> Result<Option<Arc<Journal>>, StartError> {
    let Some(path) = &config.log.journal else { return Ok(None) };
    let refused = |cause| StartError::Journal { path: path.display().to_string(), cause };
    let (journal, out) = Journal::open(path, metrics.clone()).map_err(refused)?;
    fleet.tell(out, journal.lost(), config.routing.index_memory);
    Ok(Some(Arc::new(journal)))
}

/// Writes it until another process does.
pub(super) struct Writing {
    pub(super) journal: Arc<Journal>,
    pub(super) fleet: Arc<Fleet>,
}

#[async_trait]
impl BackgroundService for Writing {
    async fn start(&self, _: ShutdownWatch) {
        let fleet = self.fleet.clone();
        self.journal.start(move || fleet.is_retired());
    }
}
