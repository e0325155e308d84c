//! One round between a router and the store, as two values: what goes out, and what comes in.

use super::keys::Rejected;
use super::store::Failed;

/// Entries that are read in one round.
pub const ENTRIES: usize = 64;

/// Where an entry is in the stream.
pub type Place = (u64, u64);

/// What goes to the store in one round.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// New entries.
    pub batches: Vec<Vec<u8>>,
    /// About how many entries are to be kept.
    pub keep: u64,
    /// What this router has, if that is to be said.
    pub live: Option<Vec<u8>>,
    /// What it has learned of speeds, likewise.
    pub lore: Option<Vec<u8>>,
    /// Words of operators, by replica.
    pub orders: Vec<(u64, Vec<u8>)>,
    /// Entries after this one are asked for.
    pub after: Place,
    /// What these routers have is asked for.
    pub peers: Vec<u64>,
    /// Whether to ask who is there.
    pub asks_list: bool,
    /// Whether to ask what operators have said.
    pub asks_orders: bool,
    /// Whether to ask what those routers have learned of speeds.
    pub asks_lore: bool,
}

/// What comes back.
#[derive(Debug, Default)]
pub struct Incoming {
    /// How many of the entries were not taken, most of all for want of memory.
    pub refused: usize,
    /// What the store says that takes nothing: what it has was read all the same.
    pub takes_nothing: Option<Failed>,
    /// The next entries.
    pub entries: Vec<(Place, Vec<u8>)>,
    /// What routers have, and have learned.
    pub live: Vec<Vec<u8>>,
    /// Likewise.
    pub lore: Vec<Vec<u8>>,
    /// What operators have said, if that was asked.
    pub orders: Option<Vec<Vec<u8>>>,
    /// Who has been there, the last ones, if that was asked.
    pub list: Option<Vec<u64>>,
}

/// What is counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Things that this router has learned and told.
    pub published: u64,
    /// That others have.
    pub received: u64,
    /// Those that the channel, and the store, had no room for.
    pub lost: [u64; 2],
    /// What was left alone, by reason.
    pub rejected: [u64; Rejected::ALL.len()],
    /// How late things of this router's reached the store's readers, in milliseconds.
    pub lags_ms: Vec<f64>,
}
