//! How far the request of an HTTP/1 connection is: known to the hooks, which Pingora calls, and to who listens in on the
//! connection, whom Pingora reads from.
//!
//! HTTP/2 has no such course: its connection carries many requests at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

/// Pingora reads a head, or waits for one.
const HEAD: u8 = 0;
/// A head was handed over.
const BEGUN: u8 = 1;
/// All of the request is there: what comes belongs to the next one.
const WHOLE: u8 = 2;

/// The course of a connection's requests.
#[derive(Debug)]
pub(super) struct Course {
    stage: AtomicU8,
    /// The most bytes that one read gives.
    most: AtomicUsize,
}

impl Default for Course {
    fn default() -> Self {
        Course { stage: AtomicU8::new(HEAD), most: AtomicUsize::new(usize::MAX) }
    }
}

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
        self.stage.store(HEAD, Relaxed);
    }

    /// Whether the head of the request has been read.
    pub(super) fn has_begun(&self) -> bool {
        self.stage.load(Relaxed) >= BEGUN
    }

    /// Whether all of the request has been read.
    pub(super) fn is_whole(&self) -> bool {
        self.stage.load(Relaxed) == WHOLE
    }

    /// The most bytes that one read may give.
    pub(super) fn most(&self) -> usize {
        self.most.load(Relaxed)
    }
}

/// Lets each read of this task's connection give so many bytes at most from now on, and at least one.
pub(super) fn read_at_most(bytes: usize) {
    // not asked of HTTP/2
    let _not_asked = COURSE.try_with(|course| course.most.store(bytes.max(1), Relaxed));
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
    let _not_asked = COURSE.try_with(|course| course.stage.store(stage, Relaxed));
}
