//! `ramjet-bench chat`, `fanout` and `trace`: the simulator's populations on real sockets.
//!
//! Who asks what, when, is `clients`, the same code that `sim` wakes in virtual time. Here names become words ([`words`]),
//! each client is a task, and connections are shared: whoever asks next takes one that is free.

mod words;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use clap::builder::RangedU64ValueParser;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::clients::fanout::Fanout;
use crate::clients::open::Trace;
use crate::clients::talk::{CHAT, Talk};
use crate::clients::{Ask, Clients};
use crate::load::batch::Batch;
use crate::load::board::{Board, Turn};
use crate::load::body::Pieces;
use crate::load::client::{Client, Reply};
use crate::load::{Aim, Course, Load, Pace, judge};
use crate::num::{mix, share};
use words::{Form, Outline, Scribe};

/// How many people chat.
#[derive(Args, Clone, Debug)]
pub(crate) struct Users {
    /// people who talk to 24 applications, each with a system prompt of its own
    #[arg(long, default_value_t = 200, value_parser = RangedU64ValueParser::<usize>::from(1..))]
    pub(crate) users: usize,
}

/// How many programs ask.
#[derive(Args, Clone, Debug)]
pub(crate) struct Programs {
    /// programs that read something new and ask ten things about it at once
    #[arg(long, default_value_t = 4, value_parser = RangedU64ValueParser::<usize>::from(1..))]
    pub(crate) programs: usize,
}

/// Which trace, and how fast.
#[derive(Args, Clone, Debug)]
pub(crate) struct Recording {
    /// a trace in Mooncake's format: JSON lines with timestamp, input_length, output_length and hash_ids
    #[arg(long, value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
    /// how much faster than recorded requests arrive, in virtual time
    #[arg(long, default_value_t = 1.0)]
    pub(crate) speed: f64,
    /// seconds of the trace that are left out at its start
    #[arg(long, default_value_t = 0.0)]
    pub(crate) skip: f64,
    /// at most so many requests (default: all)
    #[arg(long)]
    pub(crate) requests: Option<usize>,
}

impl Recording {
    /// Reads the file; needs one.
    pub(crate) fn read(&self) -> Result<Trace, String> {
        if !self.speed.is_finite() || self.speed <= 0.0 || !self.skip.is_finite() || self.skip < 0.0 {
            return Err(format!("--speed {} --skip {}: above 0 and not below 0, please", self.speed, self.skip));
        }
        let file = self.file.as_ref().ok_or("a trace needs --file PATH")?;
        let trace = Trace::read(&file.to_string_lossy())?;
        let seconds = trace.length() / 1e3;
        if seconds < self.skip {
            Err(format!("--skip {}: the trace ends after {seconds} s", self.skip))
        } else {
            Ok(trace)
        }
    }
}

/// Users of applications that share system prompts, on one target.
#[derive(Args, Debug)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    aim: Aim,
    #[command(flatten)]
    pace: Pace,
    #[command(flatten)]
    users: Users,
    /// the same seed gives the same conversations
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Programs that ask ten things at once about something new, on one target.
#[derive(Args, Debug)]
pub(crate) struct FanoutArgs {
    #[command(flatten)]
    aim: Aim,
    #[command(flatten)]
    pace: Pace,
    #[command(flatten)]
    programs: Programs,
    /// the same seed gives the same prompts
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A recorded trace at its own pace, on one target.
#[derive(Args, Debug)]
#[command(mut_arg("file", |arg| arg.required(true)))]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    aim: Aim,
    #[command(flatten)]
    pace: Pace,
    #[command(flatten)]
    recording: Recording,
}

/// A population that can be put on sockets.
pub(crate) struct Crowd {
    clients: Box<dyn Clients<Outline> + Send>,
    form: Form,
}

impl Crowd {
    pub(crate) fn chat(users: &Users, seed: u64) -> Self {
        Self { clients: Box::new(Talk::new(CHAT, users.users, seed)), form: Form::Talk }
    }

    pub(crate) fn fanout(programs: &Programs, seed: u64) -> Self {
        Self { clients: Box::new(Fanout::new(programs.programs, seed)), form: Form::Talk }
    }

    pub(crate) fn trace(trace: Trace) -> Self {
        Self { clients: Box::new(Arc::new(trace)), form: Form::Whole }
    }

    /// Starts it.
    pub(crate) fn start(self, course: &Course) -> Load {
        let board = Board::new(course.time_scale);
        let mut starts = self.clients.start();
        starts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let stage = Stage {
            clients: Mutex::new(self.clients),
            form: self.form,
            course: course.clone(),
            board: Arc::clone(&board),
            idle: Mutex::default(),
            asked: AtomicU64::new(0),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::new(stage).play(starts));
        Load { board, tasks }
    }
}

/// What the clients share.
struct Stage {
    /// guards the population; held while a client is asked what it does
    clients: Mutex<Box<dyn Clients<Outline> + Send>>,
    form: Form,
    course: Course,
    board: Arc<Board>,
    /// connections that nobody uses; held for a push or a pop
    idle: Mutex<Vec<Client>>,
    asked: AtomicU64,
}

impl Stage {
    /// Wakes each client at its time; ends when all have.
    async fn play(self: Arc<Self>, starts: Vec<(f64, usize)>) {
        let mut clients = JoinSet::new();
        for (due, id) in starts {
            self.board.until(due).await;
            clients.spawn(Arc::clone(&self).live(id, due));
            while let Some(ended) = clients.try_join_next() {
                self.check(&ended);
            }
        }
        while let Some(ended) = clients.join_next().await {
            self.check(&ended);
        }
    }

    fn check(&self, ended: &Result<(), tokio::task::JoinError>) {
        if ended.is_err() {
            self.board.failed("a client of the load ended too early".to_owned());
        }
    }

    async fn live(self: Arc<Self>, id: usize, mut due: f64) {
        let mut scribe = Scribe::new(self.form);
        loop {
            let mut asks = Vec::new();
            self.clients.lock().wake(id, &mut asks);
            let complete = self.turn(&mut scribe, &asks, due).await;
            let Some(pause) = self.clients.lock().answered(id, complete) else { return };
            due = self.board.now() + pause;
            self.board.until(due).await;
        }
    }

    /// Asks all of this at once and waits for the answers; whether all came.
    async fn turn(&self, scribe: &mut Scribe, asks: &[Ask<Outline>], due: f64) -> bool {
        let bodies = scribe.write(asks, &self.course.model);
        let began = self.board.now();
        let replies = join_all(asks.iter().zip(&bodies).map(|(ask, body)| self.one(ask.session, body, due))).await;
        let Some(replies) = replies.into_iter().collect::<Option<Vec<Reply>>>() else { return false };
        let now = self.board.now();
        if asks.len() > 1 {
            let common = Outline::common(asks) as f64;
            let of = |ask: &Ask<Outline>| share(common, ask.prompt.tokens() as f64);
            self.board.batch(Batch::of(now, now - began, &replies.iter().zip(asks.iter().map(of)).collect::<Vec<_>>()));
        }
        for (ask, reply) in asks.iter().zip(replies) {
            scribe.hear(ask.answer.0, reply.answer);
        }
        true
    }

    async fn one(&self, session: u64, body: &Pieces, due: f64) -> Option<Reply> {
        let mut client = self.idle.lock().pop().unwrap_or_default();
        // ordering: a count that guards nothing; mixed, because sessions are numbered in steps
        let turn = Turn { session: mix(session), number: self.asked.fetch_add(1, Ordering::Relaxed), due };
        let reply = self.board.ask(&self.course, &mut client, turn, body).await;
        self.idle.lock().push(client);
        reply
    }
}

/// `ramjet-bench chat`.
pub(crate) async fn chat(args: ChatArgs) -> Result<(), String> {
    judge(&args.aim, &args.pace, |course| Crowd::chat(&args.users, args.seed).start(course)).await
}

/// `ramjet-bench fanout`.
pub(crate) async fn fanout(args: FanoutArgs) -> Result<(), String> {
    judge(&args.aim, &args.pace, |course| Crowd::fanout(&args.programs, args.seed).start(course)).await
}

/// `ramjet-bench trace`.
pub(crate) async fn trace(args: TraceArgs) -> Result<(), String> {
    let recording = &args.recording;
    let trace = recording.read()?.part(recording.skip * 1e3, recording.speed, recording.requests);
    judge(&args.aim, &args.pace, |course| Crowd::trace(trace).start(course)).await
}

#[cfg(test)]
#[path = "smoke_tests.rs"]
mod tests;
