//! The settings of KV events: a part of the table.

use super::kind::{LINE, OrNull, TcpAddr, count};
use super::node::Node;
use super::page::Page;
use super::reader::Reader;
use super::schema::{Kind, Section, settings};
use std::net::SocketAddr;

const PORTS: std::ops::RangeInclusive<u32> = 1..=65_535;

settings! {
    /// Where engines tell what their KV caches store and evict (vLLM: --kv-events-config; SGLang: the same), so that what is
    /// evicted is known and not guessed. Nothing is listened to where all of these are null. Whoever may publish here can
    /// make ramjet believe what it likes of a cache, which costs hits; whoever reaches bind can also hold all connections,
    /// of which there are four for each replica and 16 more, each with up to 16 MiB of a message. It takes about 40 bytes
    /// of memory for each block that an engine stores; one that stores more than 262,144 is not followed until it connects
    /// anew.
    pub struct KvEvents {
        /// The port on each engine's own host where it publishes ("endpoint": "tcp://*:5557"). A data-parallel rank's is that
        /// of rank 0 plus its number.
        port: Option<u32> = None, OrNull(count(PORTS));
        /// The port there where it repeats what was missed (replay_endpoint). Null: then what it told is dropped at a gap.
        replay_port: Option<u32> = None, OrNull(count(PORTS));
        /// Where engines connect whose endpoint names a host ("endpoint": "tcp://ramjet:5557"), or a forwarder of many. They
        /// are told apart by their topics: see kv_events.topic of a replica. The ranks of one engine have one topic and number
        /// what they say each for itself, so they cannot come over one connection of a forwarder.
        bind: Option<SocketAddr> = None, OrNull(TcpAddr);
    }

    /// The same for one replica.
    pub struct ReplicaKvEvents {
        /// Instead of fleet.kv_events.port, if not null.
        port: Option<u32> = None, OrNull(count(PORTS));
        /// Instead of fleet.kv_events.replay_port, if not null.
        replay_port: Option<u32> = None, OrNull(count(PORTS));
        /// The topic of its engine, if it connects to fleet.kv_events.bind, or if others publish on its port, too, as a
        /// forwarder does. Of two engines with the same one neither is believed.
        topic: Option<String> = None, OrNull(LINE);
    }
}

impl Eq for ReplicaKvEvents {}

impl ReplicaKvEvents {
    /// The same, with what it leaves out taken from `common`.
    #[must_use]
    pub fn or(self, common: &KvEvents) -> ReplicaKvEvents {
        let (port, replay_port) = (self.port.or(common.port), self.replay_port.or(common.replay_port));
        ReplicaKvEvents { port, replay_port, ..self }
    }
}
