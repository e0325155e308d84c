//! The words of operators: what is in force here, what the store says, and what follows.

use super::super::keys::Purpose;
use super::super::orders::InForce;
use super::super::wire::Order;
use super::{Desk, index64, whole_ms};
use crate::fleet::state;

impl Desk {
    /// What is in force at the members.
    pub(super) fn in_force(&self, unix: u64) -> Vec<InForce> {
        let now = self.fleet.clock().now();
        let of = |order: state::Order| InForce {
            replica: self.keys.name(order.name()),
            drained: order.is_drained(),
            leaves_by: order.leaves_by().map_or(0, |ends| unix + whole_ms(ends - now)),
            since: order.drained_since().map_or(0, |since| unix.saturating_sub(whole_ms(now - since))),
        };
        self.fleet.orders().into_iter().map(of).collect()
    }

    /// What operators have said to this router lately, which is to be written: as soon as it is said, whether the store answers or
    /// not, so that the time of a word is when it was said. What is in force is that of one that has stepped back no longer.
    pub(super) fn listen_to_operators(&mut self, unix: u64) -> Vec<Order> {
        if self.fleet.is_retired() {
            return Vec::new();
        }
        let said = self.orders.said_here(&self.in_force(unix), unix);
        self.obey(said.obey, unix);
        said.write
    }

    /// Takes in what the store says.
    pub(super) fn settle(&mut self, frames: Vec<Vec<u8>>, unix: u64) {
        let mut stored = Vec::new();
        for mut frame in frames {
            match self.open::<Order>(Purpose::Order, &mut frame) {
                Ok((_, order)) => stored.push(order),
                Err(why) => self.note(Err(why)),
            }
        }
        let settled = self.orders.said_there(stored, unix);
        self.due.has_read_orders = true;
        self.due.write = settled.write;
        self.obey(settled.obey, unix);
    }

    /// Does as operators have said to others.
    pub(super) fn obey(&self, orders: Vec<Order>, unix: u64) {
        if orders.is_empty() {
            return;
        }
        // those that are members now: names may be of a moment ago
        let (members, now) = (self.fleet.members(), self.fleet.clock().now());
        let done = orders.into_iter().filter_map(|order| {
            let replica = members.iter().find(|replica| self.keys.name(replica.name()) == order.replica)?;
            let ends = order.leaves_by.checked_sub(unix).filter(|ms| *ms > 0).map(|ms| now + index64(ms));
            log::info!(
                "replica {}: another router was told to {}",
                replica.name(),
                if order.drained { "drain it" } else { "use it" }
            );
            Some(state::Order::new(replica.name().to_owned(), order.drained.then_some(now), ends))
        });
        self.fleet.obey(done.collect());
    }
}
