//! LMetric: new prompt tokens (queued ones and its own) times the size of the batch it would join; smallest wins.
//!
//! What is cached is the truth here, as if engines told it at once.

use super::books::Books;
use super::simple::Inflight;
use super::{Decision, End, First, Knowledge, Request, Rule};

/// See the module header.
#[derive(Debug)]
pub(super) struct LMetric {
    books: Books,
    turns: Inflight,
}

impl LMetric {
    pub(super) fn new(replicas: usize) -> Self {
        Self { books: Books::new(replicas), turns: Inflight::new(replicas) }
    }
}

impl Rule for LMetric {
    fn place(&mut self, request: &Request, know: &Knowledge, _: f64) -> Decision {
        let prompt = know.job.prompt_tokens;
        let fresh = |r: usize| prompt - Books::cached(know, r);
        let books = &self.books;
        let cost = |r: usize| (books.to_read[r] + fresh(r)) as f64 * (books.requests[r] + 1) as f64;
        let replica = self.turns.least(know, cost);
        let to_read = fresh(replica);
        self.books.add(request, replica, to_read, prompt);
        Decision::counting_on(replica, prompt - to_read)
    }

    fn first_token(&mut self, request: &Request, _: &First, _: f64) {
        self.books.read(request.id);
    }

    fn end(&mut self, request: &Request, _: &End, _: f64) {
        self.books.remove(request.id);
    }

    fn failed(&mut self, request: &Request, _: usize, _: f64) {
        self.books.remove(request.id);
    }

    fn booked(&self) -> u64 {
        self.books.total()
    }
}
