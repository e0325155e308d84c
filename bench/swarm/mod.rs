//! `ramjet-bench swarm`: developers with coding agents, in a closed loop.
//!
//! A closed loop shows what routing is for: an agent takes its next turn when the last one has ended, so better routing
//! appears as more turns, not only as shorter waits. What developers say is scripted by a seed ([`script`]); what they
//! send is pieced together, not serialised ([`talk`]).

pub(crate) mod script;
mod talk;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use tokio::task::JoinSet;

use crate::load::board::{Board, Turn};
use crate::load::client::Client;
use crate::load::{Aim, Course, Load, Pace, judge};
use crate::num::as_millis;
use script::Shape;
use talk::Talk;

/// A failed turn is tried again after this much virtual time.
const AFTER_FAILURE_MS: f64 = 1000.0;

/// Coding-agent load on one target.
#[derive(Args, Debug)]
pub(crate) struct SwarmArgs {
    #[command(flatten)]
    aim: Aim,
    #[command(flatten)]
    pace: Pace,
    #[command(flatten)]
    shape: Shape,
}

/// Starts every developer; their first turns are spread over `ramp` of real time.
pub(crate) fn start(shape: &Shape, course: &Course, ramp: Duration) -> Load {
    let board = Board::new(course.time_scale);
    let (mut harnesses, mut repositories): (HashMap<usize, Bytes>, HashMap<usize, Bytes>) = Default::default();
    let mut tasks = JoinSet::new();
    for developer in 0..shape.developers {
        let (harness, repository) = (shape.harness_of(developer), shape.repository_of(developer));
        let base = [
            harnesses.entry(harness).or_insert_with(|| shape.harness(harness)).clone(),
            repositories.entry(repository).or_insert_with(|| shape.repository(repository)).clone(),
        ];
        let (shape, course, board) = (shape.clone(), course.clone(), Arc::clone(&board));
        let person = Developer { number: developer, shape, course, board };
        let delay = ramp.mul_f64(developer as f64 / person.shape.developers as f64);
        tasks.spawn(person.work(base, as_millis(delay)));
    }
    Load { board, tasks }
}

struct Developer {
    number: usize,
    shape: Shape,
    course: Course,
    board: Arc<Board>,
}

impl Developer {
    async fn work(self, base: [Bytes; 2], delay_ms: f64) {
        let (session, mut due) = (self.number as u64, delay_ms * self.course.time_scale);
        self.board.until(due).await;
        let mut client = Client::default();
        let mut talk = Talk::start(&self.shape, self.number, base);
        // the first history is written at once, however long it is
        due = due.max(self.board.now());
        for number in 0.. {
            let turn = self.shape.turn(self.number, number);
            talk.make_room(&self.shape, turn.user_bytes);
            talk.user(&self.shape.user_text(self.number, number, turn.user_bytes));
            let body = talk.body(&self.course.model, turn.max_tokens);
            loop {
                let turn = Turn { session, number: session.wrapping_add(number), due };
                if let Some(reply) = self.board.ask(&self.course, &mut client, turn, &body).await {
                    talk.assistant(&reply.answer);
                    break;
                }
                due = self.board.now() + AFTER_FAILURE_MS;
                self.board.until(due).await;
            }
            due = self.board.now() + turn.think_ms;
            self.board.until(due).await;
        }
    }
}

/// Half of the warm-up: all agents starting at once would be a herd that no team makes.
pub(crate) fn ramp(pace: &Pace) -> Duration {
    Duration::from_secs_f64(pace.warmup / 2.0)
}

/// Refuses what makes no sense.
pub(crate) fn check(shape: &Shape) -> Result<(), String> {
    let fine = |x: f64| x.is_finite() && x >= 0.0;
    if shape.developers == 0 {
        return Err("--developers 0: at least one is needed".to_owned());
    }
    if !fine(shape.think) || !fine(shape.head_start) {
        return Err("--think and --head-start must not be negative".to_owned());
    }
    Ok(())
}

/// The command.
pub(crate) async fn run(args: SwarmArgs) -> Result<(), String> {
    check(&args.shape)?;
    judge(&args.aim, &args.pace, |course| start(&args.shape, course, ramp(&args.pace))).await
}
