//! Small shared words: identities, quantities and closed choices that every layer speaks.
//!
//! Nothing here does anything; the types exist so that a slot is not mistaken for a count and a policy name
//! is not a string.

use crate::pack::Pack;
use std::fmt;

/// The slot of a replica in the fleet: dense, stable while it is there, and another's only when nothing refers to it any
/// more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u16);

impl ReplicaId {
    /// The slot as an index into per-replica tables.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl Pack for ReplicaId {
    fn pack(&self, out: &mut Vec<u8>) {
        self.0.pack(out);
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        u16::unpack(from).map(ReplicaId)
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which rule chooses the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Predicted milliseconds: the request's own and those it costs others.
    Cost,
    /// Credit for cached blocks minus load.
    Affinity,
    /// Fewest reserved units.
    Load,
    /// Rotation.
    RoundRobin,
}

impl PolicyKind {
    /// Every choice, in the order in which documents list them.
    pub const ALL: [PolicyKind; 4] = [PolicyKind::Cost, PolicyKind::Affinity, PolicyKind::Load, PolicyKind::RoundRobin];

    /// The word used in the configuration, metrics and decisions.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Cost => "cost",
            PolicyKind::Affinity => "affinity",
            PolicyKind::Load => "load",
            PolicyKind::RoundRobin => "round_robin",
        }
    }
}

/// What is done about requests that share a prefix which is being read for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlightMode {
    /// Only what has been read counts.
    Off,
    /// Likewise, and what `colocate` would have changed is counted.
    Shadow,
    /// They meet at the replica that reads it.
    Colocate,
    /// They meet there, and wait with the router until it is read.
    Hold,
}

impl FlightMode {
    /// Every choice, in the order in which documents list them.
    pub const ALL: [FlightMode; 4] = [FlightMode::Off, FlightMode::Shadow, FlightMode::Colocate, FlightMode::Hold];

    /// The word used in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            FlightMode::Off => "off",
            FlightMode::Shadow => "shadow",
            FlightMode::Colocate => "colocate",
            FlightMode::Hold => "hold",
        }
    }
}

/// Whether engines are asked for usage that clients did not ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageMode {
    /// What a client asks for is asked for.
    AsAsked,
    /// It always is, and what the client did not ask for is hidden from it.
    AskAndHide,
}

impl UsageMode {
    /// Every choice, in the order in which documents list them.
    pub const ALL: [UsageMode; 2] = [UsageMode::AsAsked, UsageMode::AskAndHide];

    /// The word used in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            UsageMode::AsAsked => "as_asked",
            UsageMode::AskAndHide => "ask_and_hide",
        }
    }
}

/// Where requests go that are short, in a fleet that has a lane for long prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortPrompts {
    /// Anywhere.
    Shared,
    /// Never to the lane while another replica is healthy.
    Exclusive,
    /// To the lane only where that saves more than it costs.
    Avoid,
}

impl ShortPrompts {
    /// Every choice, in the order in which documents list them.
    pub const ALL: [ShortPrompts; 3] = [ShortPrompts::Shared, ShortPrompts::Exclusive, ShortPrompts::Avoid];

    /// The word used in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            ShortPrompts::Shared => "shared",
            ShortPrompts::Exclusive => "exclusive",
            ShortPrompts::Avoid => "avoid",
        }
    }
}

/// What a replica's overlap is compared with before it earns credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The overlap itself.
    Absolute,
    /// The overlap beyond what every peer holds too.
    Marginal,
    /// The overlap that is missing to the best peer, taken off the best peer's credit.
    Relative,
}

impl Basis {
    /// Every choice, in the order in which documents list them.
    pub const ALL: [Basis; 3] = [Basis::Absolute, Basis::Marginal, Basis::Relative];

    /// The word used in the configuration and in decisions.
    pub fn name(self) -> &'static str {
        match self {
            Basis::Absolute => "absolute",
            Basis::Marginal => "marginal",
            Basis::Relative => "relative",
        }
    }
}

/// Which requests go first when not all can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Those that somebody waits for.
    Interactive,
    /// Those that nobody waits for.
    Batch,
}

impl Priority {
    /// Every choice, the first to go first.
    pub const ALL: [Priority; 2] = [Priority::Interactive, Priority::Batch];

    /// The word used in the configuration, in requests and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Priority::Interactive => "interactive",
            Priority::Batch => "batch",
        }
    }
}

/// Which replicas are asked for a token now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeMode {
    /// All.
    All,
    /// Those that are one of several data-parallel ranks.
    Ranks,
    /// None.
    Off,
}

impl ProbeMode {
    /// Every choice, in the order in which documents list them.
    pub const ALL: [ProbeMode; 3] = [ProbeMode::All, ProbeMode::Ranks, ProbeMode::Off];

    /// The word used in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            ProbeMode::All => "all",
            ProbeMode::Ranks => "ranks",
            ProbeMode::Off => "off",
        }
    }
}

/// What follows from what real requests show of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchMode {
    /// It is fenced.
    Fence,
    /// The log says so.
    Observe,
    /// Nobody looks.
    Off,
}

impl WatchMode {
    /// Every choice, in the order in which documents list them.
    pub const ALL: [WatchMode; 3] = [WatchMode::Fence, WatchMode::Observe, WatchMode::Off];

    /// The word used in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            WatchMode::Fence => "fence",
            WatchMode::Observe => "observe",
            WatchMode::Off => "off",
        }
    }
}

/// What follows from drafts of speculative decoding that are never accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardMode {
    /// The replica gets no new requests until its engine has restarted.
    Quarantine,
    /// The log says so.
    Observe,
    /// Nobody looks.
    Off,
}

impl GuardMode {
    /// Every choice, in the order in which documents list them.
    pub const ALL: [GuardMode; 3] = [GuardMode::Quarantine, GuardMode::Observe, GuardMode::Off];

    /// The word used in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            GuardMode::Quarantine => "quarantine",
            GuardMode::Observe => "observe",
            GuardMode::Off => "off",
        }
    }
}
