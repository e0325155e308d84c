//! How far the request of an HTTP/1 connection is: known to the hooks, which Pingora calls, and to who listens in on the
//! connection, whom Pingora reads from.
//!
//! So is what is kept back of a request on its way to the engine, which whoever goes on with the request sends in time.
//!
//! HTTP/2 has no such course: its connection carries many requests at a time.

use std::future::{Future, poll_fn};
use std::os::fd::RawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicUsize, Ordering::Relaxed};

/// Pingora reads a head, or waits for one.
const HEAD: u8 = 0;
/// A head was handed over.
const BEGUN: u8 = 1;
/// All of the request is there: what comes belongs to the next one.
const WHOLE: u8 = 2;

/// No connection.
const NONE: RawFd = -1;

/// The course of a connection's requests.
#[derive(Debug)]
pub(super) struct Course {
    stage: AtomicU8,
    /// The most bytes that one read gives.
    most: AtomicUsize,
    /// The connection to an engine that keeps back what is written to it.
    corked: AtomicI32,
}

impl Default for Course {
    fn default() -> Self {
        Course { stage: AtomicU8::new(HEAD), most: AtomicUsize::new(usize::MAX), corked: AtomicI32::new(NONE) }
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

    /// Goes on with a request that is being served, and sends what was kept back for it whenever it has to wait.
    pub(super) async fn attend<F: Future>(&self, mut request: Pin<&mut F>) -> F::Output {
        poll_fn(|cx| {
            let polled = request.as_mut().poll(cx);
            self.uncork();
            polled
        })
        .await
    }

    fn uncork(&self) {
        if self.corked.load(Relaxed) != NONE {
            cork::cork(self.corked.swap(NONE, Relaxed), false);
        }
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

/// Lets a connection to an engine keep back the request's head, which Pingora sends by itself, until the body is written
/// as well: in one segment they cost one send, and wake the engine once. They go when this task has to wait, which is
/// after the body has been written, or where that has to wait itself.
pub(super) fn send_together(connection: RawFd) {
    // HTTP/2 has no course, and nobody who would end it
    let _not_asked = COURSE.try_with(|course| {
        course.uncork();
        if cork::cork(connection, true) {
            course.corked.store(connection, Relaxed);
        }
    });
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
