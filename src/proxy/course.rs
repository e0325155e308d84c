//! How far the request of an HTTP/1 connection is: known to the hooks, which Pingora calls, and to who listens in on the
//! connection, whom Pingora reads from.
//!
//! HTTP/2 has no such course: its connection carries many requests at a time.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Pingora reads a head, or waits for one.
const HEAD: u8 = 0;
/// A head was handed over.
const BEGUN: u8 = 1;
/// All of the request is there: what comes belongs to the next one.
const WHOLE: u8 = 2;

/// The course of a connection's requests.
#[derive(Debug, Default)]
pub(super) struct Course(AtomicU8);

tokio::task_local! {
    /// That of the connection which this task serves.
    static COURSE: Arc<Course>;
}

impl Course {
    /// Serves one request, whose hooks may tell how far it is.
    pub(super) async fn scope<T>(self: &Arc<Self>, request: impl Future<Output = T>) -> T {
        COURSE.scope(self.clone(), request).await
    }

    /// Waits for the next request.
    pub(super) fn next(&self) {
        self.0.store(HEAD, Relaxed);
    }

    /// Whether the head of the request has been read.
    pub(super) fn has_begun(&self) -> bool {
        self.0.load(Relaxed) >= BEGUN
    }

    /// Whether all of the request has been read.
    pub(super) fn is_whole(&self) -> bool {
        self.0.load(Relaxed) == WHOLE
    }
}

/// Notes that the head of this task's request has been read.
pub(super) fn request_begins() {
    reach(BEGUN);
}

/// Notes that this task's request has been read to its end.
pub(super) fn request_is_whole() {
    reach(WHOLE);
}

fn reach(stage: u8) {
    // not asked of HTTP/2
    let _not_asked = COURSE.try_with(|course| course.0.store(stage, Relaxed));
}
