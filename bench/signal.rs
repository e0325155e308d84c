//! The end of a long run: interrupt or terminate, whichever comes first.

use tokio::signal::unix::{SignalKind, signal};

/// Returns when the process is asked to end.
pub(crate) async fn ended() -> Result<(), String> {
    let listen = |kind| signal(kind).map_err(|error| format!("signal handler: {error}"));
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
