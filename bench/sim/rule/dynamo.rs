//! Dynamo's KV router: uncached tokens to be read there (queued ones and its own) plus tokens in use there, both in
//! blocks, the smallest sum wins.
//!
//! Its engines publish what they cache; so the overlap is the truth here, at once. Weight and temperature are its
//! defaults, 1 and 0.

use super::books::Books;
use super::simple::Inflight;
use super::{Decision, End, First, Knowledge, Request, Rule};

/// What a token to be read costs beside a token in use.
const WEIGHT: f64 = 1.0;

/// See the module header.
#[derive(Debug)]
pub(super) struct Dynamo {
    books: Books,
    turns: Inflight,
}

impl Dynamo {
    pub(super) fn new(replicas: usize) -> Self {
        Self { books: Books::new(replicas), turns: Inflight::new(replicas) }
    }
}

impl Rule for Dynamo {
    fn place(&mut self, request: &Request, know: &Knowledge, _: f64) -> Decision {
        let prompt = know.job.prompt_tokens;
        let fresh = |r: usize| prompt - Books::cached(know, r);
        let books = &self.books;
        let cost = |r: usize| WEIGHT * (books.to_read[r] + fresh(r)) as f64 + (books.active[r] + prompt) as f64;
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
