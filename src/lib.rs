//! ramjet: a reverse proxy that sends each inference request to the replica that can answer it with the least repeated
//! work.
//!
//! # The life of a request
//!
//! 1. A client's request arrives at a Pingora listener. [`proxy`] reads its whole body (`proxy/body.rs` says how it
//!    still gets upstream) and [`api`] turns it into a *canonical prompt*, hashed block by block into *fingerprints*.
//! 2. [`fleet`] walks the *prefix index* of [`prefix`] once for all replicas: how many leading blocks does each hold?
//!    [`policy`] ranks the replicas by that and by their *load*, and the winner's share is *reserved* in the same step.
//! 3. The prompt is *claimed* for the replica as pending, the request is forwarded byte for byte, and the answer streams
//!    back untouched. It is read beside: the first generated token confirms the claim and shrinks the reservation.
//! 4. An attempt that fails before a byte was answered walks on in the same ranking. Whatever happens, guards in the
//!    request's context give back what was taken.
//!
//! Meanwhile [`engine`] resolves host names, probes readiness and generation, watches progress and learns which models there
//! are, [`telemetry`] counts, and [`admin`] shows and takes orders.
//!
//! # Who may know whom
//!
//! ```text
//! pack  ←  types  ←  api, prefix, policy  ←  fleet  ←  engine, telemetry, cluster, proxy, admin  ←  server  ←  main
//!                                             config (known by server and main only)
//! ```
//!
//! - [`api`], [`prefix`] and [`policy`] are pure: no clock, no lock, no randomness, no IO, nothing asynchronous. What
//!   changes from call to call is a parameter, so every decision can be replayed from values.
//! - [`proxy`] is the only place that names pingora-proxy; it counts and writes through [`telemetry`].
//! - [`config`] becomes plain values in [`server`]; nothing below reads it.
//!
//! **Architecture invariant:** nothing that ramjet itself says to a client names a replica, a host, a key or another
//! client's prompt.
//!
//! # Where to look
//!
//! | question | place |
//! |---|---|
//! | why did it go there? | [`policy::select`], [`policy::score`], [`policy::cost`] |
//! | who waits for whom, and what keeps a session? | [`policy::flight`], [`policy::hint`] |
//! | who is kept for long prompts, who has just come back? | [`policy::lane`], [`policy::slow_start`] |
//! | what is learned, and how? | [`policy::estimate`], [`policy::backlog`], [`policy::flow`], [`prefix::lru`] |
//! | what does a prompt hash to? | [`api::canonical`], [`prefix::fingerprint`] |
//! | what does an answer tell, compressed or not? | [`api::answer`], [`api::decoder`] |
//! | how long may a head take, and what is said of one that cannot be read? | `proxy/heads.rs` |
//! | where does a body end, and which answer was cut? | `proxy/framing.rs`, `proxy/relay.rs` |
//! | is a client still there that waits? | `proxy/presence.rs` |
//! | who belongs to the fleet, and what becomes of who leaves? | [`fleet::members`], [`engine::membership`] |
//! | what is read again while requests run? | `server/reload.rs` |
//! | what is remembered of what was used last, and how much? | [`prefix::halves`] |
//! | who holds what? | [`prefix::index`], [`prefix::residency`], [`prefix::turns`]; what was given an id: [`fleet::pins`] |
//! | who waits when more is asked than may run, and who is turned away? | [`policy::queue`], [`fleet::gate`], `proxy/queue.rs` |
//! | whose prompt is read first where caches are too small for all? | [`policy::room`] |
//! | when is an attempt repeated? | [`policy::retry`], `proxy/retry.rs` |
//! | when is a replica fenced, and for what? | [`policy::standing`], [`policy::health`], [`engine::probe`], [`engine::generation`] |
//! | when is it frozen, when do its requests fail? | [`policy::progress`], [`policy::errors`], [`engine::watchdog`], `proxy/signals.rs` |
//! | is it the engine that it must be, and do its drafts work? | [`policy::admission`], [`engine::admission`], [`policy::speculation`], [`engine::speculation`] |
//! | who may ask, and from which page? | `proxy/auth.rs`, `proxy/cors.rs` |
//! | which models are there, under which names? | [`api::catalogue`], [`api::model`], `proxy/models.rs` |
//! | what is told of a request, and to whom? | [`telemetry::decisions`], `proxy/explain.rs`, [`admin`] |
//! | why was a prompt read again? | [`policy::accounts`] |
//! | what does the dashboard show, and from where? | [`admin`], `admin/page/`, [`telemetry::history`], [`telemetry::trunks`] |
//! | which metrics are there, and what must always hold? | `telemetry/metrics.rs`, `deploy/METRICS.md`, [`telemetry::checks`] |
//! | where does a trace go? | [`telemetry::traces`], `proxy/trace.rs` |
//! | what breaks prefixes, and what are savings told against? | [`api::outline`], [`telemetry::linter`], [`prefix::rotation`] |
//! | what is written down of choices, and how are they made again? | [`fleet::steps`], [`telemetry::journal`], [`fleet::replay`] |
//! | how does one process follow another, and what goes along? | `server/handover/`, [`pack`], [`fleet::state`] |
//! | what do several routers tell each other? | [`cluster`], [`fleet::sharing`], [`fleet::heard`], [`fleet::emptied`] |
//! | who proves to be whom? | `server/tls.rs`, [`fleet::transport`] |
//! | what does a setting mean? | `config/table.rs`, or `ramjet reference` |

pub mod admin;
pub mod api;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod engine;
pub mod fleet;
pub mod pack;
pub mod policy;
pub mod prefix;
pub mod proxy;
pub mod server;
pub mod telemetry;
pub mod types;
