//! Who has what to do, as a router that is told of every cached block can keep it: prompt tokens to be read and tokens
//! in use per replica. Shared by the rules that cost by tokens.

use std::collections::HashMap;

use super::{Knowledge, Request};
use crate::sim::content::ENGINE_BLOCK;

#[derive(Debug, Clone, Copy)]
struct Entry {
    replica: usize,
    to_read: usize,
    tokens: usize,
}

/// See the module header.
#[derive(Debug)]
pub(super) struct Books {
    entries: HashMap<u64, Entry>,
    /// prompt tokens that are not read yet
    pub(super) to_read: Vec<usize>,
    /// prompt tokens of the requests there
    pub(super) active: Vec<usize>,
    /// requests there
    pub(super) requests: Vec<usize>,
}

impl Books {
    pub(super) fn new(replicas: usize) -> Self {
        let zeros = vec![0; replicas];
        Self { entries: HashMap::new(), to_read: zeros.clone(), active: zeros.clone(), requests: zeros }
    }

    /// Prompt tokens that this replica holds, as its events say.
    pub(super) fn cached(know: &Knowledge, replica: usize) -> usize {
        let usable = know.job.prompt_tokens.saturating_sub(1) / ENGINE_BLOCK;
        know.engines[replica].matched(&know.job.chain[..usable.min(know.job.chain.len())]) * ENGINE_BLOCK
    }

    pub(super) fn add(&mut self, request: &Request, replica: usize, to_read: usize, tokens: usize) {
        self.entries.insert(request.id, Entry { replica, to_read, tokens });
        self.to_read[replica] += to_read;
        self.active[replica] += tokens;
        self.requests[replica] += 1;
    }

    pub(super) fn read(&mut self, id: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            self.to_read[entry.replica] -= entry.to_read;
            entry.to_read = 0;
        }
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.read(id);
        if let Some(entry) = self.entries.remove(&id) {
            self.active[entry.replica] -= entry.tokens;
            self.requests[entry.replica] -= 1;
        }
    }

    pub(super) fn total(&self) -> u64 {
        (self.entries.len() + self.to_read.iter().chain(&self.active).sum::<usize>()) as u64
    }
}
