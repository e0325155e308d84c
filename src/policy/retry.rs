//! Whether a failed attempt is followed by another one, and where.
//!
//! The next attempt goes to the next replica of the ranking, but for one case: an idle connection that turned out dead
//! says nothing against the replica, which was chosen for what it holds. That attempt is repeated there once, on a fresh
//! connection, and does not count; likewise one whose new connection may lead to another engine than the one that was
//! asked who it is.
//!
//! A retry happens only before any response byte went to the client, and at most `attempts` are made in all. Whether
//! an engine may have begun the request matters: what never reached an engine, what one did not get in full, and what its
//! front refused can always be sent again; what one may have begun only where a repetition costs nothing but work. For a
//! proxy must not repeat what may have an effect (RFC 9110, section 9.2.2), unless it knows that it had none; and that a
//! kept connection ended tells nothing of whether the request on it was seen (RFC 9112, section 9.3.1).

/// How an attempt failed. The names are metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The connection was refused or broke while it was made.
    Connect,
    /// The connection was not made in time.
    ConnectTimeout,
    /// The system gave this process no socket or no port for a connection: no engine's doing.
    NoSocket,
    /// A connection kept from an earlier request turned out dead.
    StaleConnection,
    /// A connection was made, perhaps to another engine than the one that was asked who it is.
    Unidentified,
    /// 502 or 503 from the engine's front, without `Retry-After`.
    BadGateway,
    /// The connection was lost before the first response byte.
    Lost,
    /// No response in time.
    Timeout,
    /// A stream ended without its end, or reported an error.
    BrokenStream,
    /// The answer was not HTTP.
    Unreadable,
}

/// How far the request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Attempts made, this one included, a renewed one not counted twice.
    pub attempts: u32,
    /// Whether an attempt was repeated on a fresh connection already.
    pub renewed: bool,
    /// Whether another replica is left in the ranking.
    pub candidates_left: bool,
    /// Whether any response byte went to the client.
    pub answered: bool,
    /// Whether the body can be sent again in full.
    pub replayable: bool,
    /// Whether a repetition has no side effect.
    pub repeatable: bool,
    /// Whether the request could not be written to its end, so that no engine can have begun it.
    pub unsent: bool,
}

/// The operator's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Attempts in all.
    pub attempts: u32,
    /// Whether a request whose connection was lost is sent again.
    pub replay_lost: bool,
}

impl Failure {
    /// Every failure, in the order of the metrics' label values.
    pub const ALL: [Failure; 10] = [
        Failure::Connect,
        Failure::ConnectTimeout,
        Failure::NoSocket,
        Failure::StaleConnection,
        Failure::Unidentified,
        Failure::BadGateway,
        Failure::Lost,
        Failure::Timeout,
        Failure::BrokenStream,
        Failure::Unreadable,
    ];

    /// Whether another replica may be tried after it, if nothing else forbids it.
    pub fn may_move(self) -> bool {
        !matches!(self, Failure::Timeout | Failure::BrokenStream | Failure::Unreadable)
    }

    /// Whether no engine was reached at all.
    pub fn is_connect(self) -> bool {
        matches!(self, Failure::Connect | Failure::ConnectTimeout | Failure::NoSocket)
    }

    /// Whether it says something of the replica.
    pub fn is_the_replicas(self) -> bool {
        !matches!(self, Failure::NoSocket | Failure::Unidentified)
    }

    /// Whether the engine may have ended, so that another one answers next.
    pub fn may_be_a_restart(self) -> bool {
        matches!(self, Failure::Connect | Failure::ConnectTimeout | Failure::StaleConnection | Failure::Lost)
    }

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Failure::Connect => "connect",
            Failure::ConnectTimeout => "connect_timeout",
            Failure::NoSocket => "no_socket",
            Failure::StaleConnection => "stale_connection",
            Failure::Unidentified => "unidentified",
            Failure::BadGateway => "bad_gateway",
            Failure::Lost => "lost",
            Failure::Timeout => "timeout",
            Failure::BrokenStream => "broken_stream",
            Failure::Unreadable => "unreadable",
        }
    }
}

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The client is told.
    GiveUp,
    /// The same replica, on a fresh connection.
    Again,
    /// The next replica of the ranking.
    Next,
}

/// Whether and where to try again.
pub fn verdict(failure: Failure, progress: Progress, limits: Limits) -> Verdict {
    let allowed = match failure {
        Failure::StaleConnection => progress.repeatable || progress.unsent,
        Failure::Lost => progress.repeatable && limits.replay_lost,
        _ => failure.may_move(),
    };
    if !allowed || progress.answered || !progress.replayable {
        return Verdict::GiveUp;
    }
    let is_the_connections = matches!(failure, Failure::StaleConnection | Failure::Unidentified);
    if is_the_connections && !progress.renewed {
        return Verdict::Again;
    }
    let room = progress.attempts < limits.attempts && progress.candidates_left;
    if room { Verdict::Next } else { Verdict::GiveUp }
}

/// The place in a ranking where the next attempt goes, the first `tried` places having failed: the best on a node that
/// was not tried yet, as what took one replica of a node away takes its neighbours too; else the best that is left.
/// `nodes` are those of the ranking; its first `preferred` places come before all others, whatever their node. `None`
/// when nobody is left.
pub fn next_place(nodes: &[&str], tried: usize, preferred: usize) -> Option<usize> {
    let (failed, left) = nodes.split_at_checked(tried)?;
    let group = if tried < preferred { preferred.min(nodes.len()) - tried } else { left.len() };
    let elsewhere = left[..group].iter().position(|node| !failed.contains(node));
    elsewhere.or_else(|| (!left.is_empty()).then_some(0)).map(|place| tried + place)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Progress = Progress {
        attempts: 1,
        renewed: false,
        candidates_left: true,
        answered: false,
        replayable: true,
        repeatable: true,
        unsent: false,
    };
    const LIMITS: Limits = Limits { attempts: 2, replay_lost: true };

    fn after(failure: Failure, progress: Progress) -> Verdict {
        verdict(failure, progress, LIMITS)
    }

    #[test]
    fn what_never_reached_an_engine_goes_elsewhere_whatever_it_is() {
        for failure in [Failure::Connect, Failure::ConnectTimeout] {
            assert_eq!(after(failure, Progress { repeatable: false, ..FRESH }), Verdict::Next);
        }
    }

    #[test]
    fn what_an_engines_front_refused_or_did_not_get_in_full_goes_on_whatever_it_is() {
        let stored = Progress { repeatable: false, ..FRESH };
        assert_eq!(after(Failure::BadGateway, stored), Verdict::Next);
        assert_eq!(after(Failure::StaleConnection, stored), Verdict::GiveUp);
        let unsent = Progress { unsent: true, ..stored };
        assert_eq!(after(Failure::StaleConnection, unsent), Verdict::Again);
        // a connection that was new has met an engine that was there
        assert_eq!(after(Failure::Lost, unsent), Verdict::GiveUp);
    }

    #[test]
    fn what_an_engine_may_have_begun_is_repeated_only_without_side_effects() {
        for (failure, wanted) in [(Failure::StaleConnection, Verdict::Again), (Failure::Lost, Verdict::Next)] {
            assert_eq!(after(failure, FRESH), wanted);
            assert_eq!(after(failure, Progress { repeatable: false, ..FRESH }), Verdict::GiveUp);
        }
        assert_eq!(verdict(Failure::Lost, FRESH, Limits { replay_lost: false, ..LIMITS }), Verdict::GiveUp);
    }

    #[test]
    fn a_dead_idle_connection_is_no_reason_to_leave_the_only_replica() {
        let alone = Progress { candidates_left: false, ..FRESH };
        assert_eq!(after(Failure::StaleConnection, alone), Verdict::Again);
        assert_eq!(after(Failure::Connect, alone), Verdict::GiveUp);
    }

    #[test]
    fn a_fresh_connection_is_tried_once_and_costs_no_attempt() {
        assert_eq!(after(Failure::StaleConnection, Progress { attempts: 2, ..FRESH }), Verdict::Again);
        let renewed = Progress { renewed: true, ..FRESH };
        assert_eq!(after(Failure::StaleConnection, renewed), Verdict::Next);
        assert_eq!(after(Failure::Connect, renewed), Verdict::Next);
        assert_eq!(after(Failure::StaleConnection, Progress { attempts: 2, ..renewed }), Verdict::GiveUp);
    }

    #[test]
    fn where_another_engine_may_listen_the_request_goes_there_once_more_and_then_elsewhere_whatever_it_is() {
        let stored = Progress { repeatable: false, ..FRESH };
        assert_eq!(after(Failure::Unidentified, stored), Verdict::Again);
        assert_eq!(after(Failure::Unidentified, Progress { renewed: true, ..stored }), Verdict::Next);
        let alone = Progress { renewed: true, candidates_left: false, ..stored };
        assert_eq!(after(Failure::Unidentified, alone), Verdict::GiveUp);
        assert!(!Failure::Unidentified.is_the_replicas() && !Failure::Unidentified.is_connect());
    }

    #[test]
    fn the_next_attempt_prefers_a_node_that_was_not_tried() {
        // (nodes of the ranking, tried, preferred, the next place)
        let rows = [
            (&["a", "a", "b", "b"][..], 1, 4, Some(2)),
            // after a and b have failed, the best that is left
            (&["a", "b", "a", "b"], 2, 4, Some(2)),
            (&["a", "b", "a", "c"], 2, 4, Some(3)),
            (&["a", "a", "a"], 1, 3, Some(1)),
            // the preferred ones go before other nodes, and the others after them
            (&["a", "a", "b", "b"], 1, 2, Some(1)),
            (&["a", "a", "a", "b"], 2, 2, Some(3)),
            (&["a"], 1, 1, None),
            (&["a"], 2, 1, None),
            (&[], 0, 0, None),
        ];
        for (nodes, tried, preferred, next) in rows {
            assert_eq!(next_place(nodes, tried, preferred), next, "{nodes:?} {tried} {preferred}");
        }
    }

    #[test]
    fn nothing_is_retried_beyond_its_bounds() {
        assert_eq!(after(Failure::Connect, Progress { attempts: 2, ..FRESH }), Verdict::GiveUp);
        for failure in Failure::ALL {
            for barred in [Progress { answered: true, ..FRESH }, Progress { replayable: false, ..FRESH }] {
                assert_eq!(after(failure, barred), Verdict::GiveUp, "{failure:?} {barred:?}");
            }
        }
        for failure in Failure::ALL {
            let moves = after(failure, Progress { renewed: true, ..FRESH }) == Verdict::Next;
            assert_eq!(moves, failure.may_move(), "{failure:?}");
        }
    }
}
