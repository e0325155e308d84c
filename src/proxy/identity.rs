//! Where a replica's engine must be a certain one, nothing is said on a connection that may lead to another one.
//!
//! A connection is made to an address, and who listens there may have changed since the engine was asked who it is. So a
//! new connection is used only if the one that watches that engine still stands after it was made: the engine ends the
//! watch by ending, before another one can listen at its address. Where that cannot be said, the request waits until the
//! engine has been asked again, and is connected anew. A kept connection leads where it led.

use super::Proxy;
use super::context::Context;
use super::presence::leaves;
use super::request::refuse;
use crate::api::errors::ErrorKind;
use crate::fleet::replica::Replica;
use crate::policy::retry::{Failure, Verdict};
use pingora_error::{Error, ErrorType, Result};
use pingora_proxy::Session;
use std::time::Duration;

/// The kind of Pingora's error for a connection that is not used.
pub(super) const UNIDENTIFIED: &str = "Unidentified";
/// How often a request looks whether an engine has said who it is.
const KNOWN_SOON: Duration = Duration::from_millis(10);

/// Fails where a connection that was made just now may lead to another engine than the one it is for.
pub(super) fn leads_to_its_engine(reused: bool, ctx: &Context) -> Result<()> {
    let replica = ctx.attempt.as_ref().map(|attempt| attempt.reservation.replica());
    if reused || replica.is_none_or(|replica| replica.is_still_itself()) {
        return Ok(());
    }
    let mut e = Error::explain(ErrorType::Custom(UNIDENTIFIED), "another engine may listen there");
    e.as_up();
    Err(e)
}

impl Proxy {
    /// A connection that was dead, or is not used, may be that of another engine: where it matters which, that is asked
    /// before the request goes there once more. Who is not let in by then is left, if another attempt is allowed.
    pub(super) async fn ask_again(&self, session: &mut Session, ctx: &mut Context) -> Result<()> {
        let Some(route) = ctx.route.as_ref().filter(|route| route.verdict == Verdict::Again) else { return Ok(()) };
        let failed = route.decision.ranked.at(route.position).and_then(|r| self.router.fleet().replica(r.id));
        let is_in = |replica: &Replica| !replica.is_barred() && replica.is_still_itself();
        let Some(replica) = failed.filter(|replica| !is_in(replica)) else { return Ok(()) };
        let until_known = async {
            while replica.is_unidentified() || !replica.is_barred() && !replica.is_still_itself() {
                tokio::time::sleep(KNOWN_SOON).await;
            }
        };
        tokio::select! {
            _ = tokio::time::timeout(ctx.terms.settings.phases.connect, until_known) => {}
            left = leaves(session) => return Err(left),
        }
        if !is_in(&replica) {
            let Some(route) = &mut ctx.route else { return Ok(()) };
            (route.renewed, route.verdict) = (true, Verdict::Next);
            if self.verdict(Failure::Unidentified, true, session, ctx) != Verdict::Next {
                return refuse(ctx, ErrorKind::NoReplica);
            }
        }
        Ok(())
    }
}
