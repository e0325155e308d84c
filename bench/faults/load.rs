//! Agents that take turns, and a note of each request: when it began and ended, how, and where.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::load::body::Pieces;
use crate::load::client::Client;
use crate::num::{Rng, millis, size};
use crate::swarm::script::{BYTES_PER_TOKEN, prose};

/// What the agents do. Sizes in tokens, times in virtual ms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) agents: usize,
    /// how long a prompt is at first, between
    pub(crate) prompt: (f64, f64),
    /// what a turn adds, between; a conversation of three times its first size begins anew
    pub(crate) turn: (f64, f64),
    /// whether every prompt is a new one from its first byte
    pub(crate) unique: bool,
    pub(crate) answer: (f64, f64),
    pub(crate) think: (f64, f64),
    /// an agent gives up after so long, in real time
    pub(crate) patience: Duration,
    pub(crate) time_scale: f64,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    Open,
    Answered,
    /// told to come again later: 429 or 503
    TurnedAway,
    Failed(String),
}

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Note {
    pub(crate) agent: usize,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    pub(crate) end: End,
    pub(crate) replica: Option<String>,
    /// real ms to the first word
    pub(crate) ttft: f64,
}

/// Agents at work; they stop when this is dropped.
#[derive(Debug)]
pub(crate) struct Agents {
    notes: Arc<Mutex<Vec<Note>>>,
    _tasks: JoinSet<()>,
}

impl Agents {
    /// Agents that ask `host` for `model`.
    pub(crate) fn start(host: &str, model: &str, work: Work) -> Self {
        let notes: Arc<Mutex<Vec<Note>>> = Arc::default();
        let mut tasks = JoinSet::new();
        for number in 0..work.agents {
            let agent = Agent {
                number,
                rng: Rng::of(&[17, number as u64]),
                work,
                host: host.to_owned(),
                model: model.to_owned(),
                notes: Arc::clone(&notes),
            };
            tasks.spawn(agent.live());
        }
        Self { notes, _tasks: tasks }
    }

    /// What was noted so far.
    pub(crate) fn notes(&self) -> Vec<Note> {
        self.notes.lock().clone()
    }
}

struct Agent {
    number: usize,
    rng: Rng,
    work: Work,
    host: String,
    model: String,
    notes: Arc<Mutex<Vec<Note>>>,
}

impl Agent {
    async fn live(mut self) {
        let mut client = Client::default();
        let mut talk = Vec::new();
        let (mut tokens, mut limit) = (0.0, 0.0);
        self.rest().await;
        loop {
            if talk.is_empty() || tokens > limit || self.work.unique {
                tokens = self.rng.between(self.work.prompt.0, self.work.prompt.1);
                limit = 3.0 * tokens;
                talk = vec![self.say("system", tokens)];
            }
            let more = self.rng.between(self.work.turn.0, self.work.turn.1);
            tokens += more;
            talk.push(self.say("user", more));
            let answer = size(self.rng.between(self.work.answer.0, self.work.answer.1));
            // an agent that got no answer asks the same once more
            let said = loop {
                let said = self.ask(&mut client, &talk, answer).await;
                self.rest().await;
                if let Some(said) = said {
                    break said;
                }
            };
            talk.push(Bytes::from(format!(r#"{{"role":"assistant","content":"{said}"}}"#)));
        }
    }

    fn say(&mut self, role: &str, tokens: f64) -> Bytes {
        let text = prose(&mut self.rng, size(tokens) * BYTES_PER_TOKEN);
        Bytes::from(format!(r#"{{"role":"{role}","content":"{text}"}}"#))
    }

    async fn rest(&mut self) {
        let think = self.rng.between(self.work.think.0, self.work.think.1);
        tokio::time::sleep(millis(think / self.work.time_scale)).await;
    }

    async fn ask(&self, client: &mut Client, talk: &[Bytes], answer: usize) -> Option<String> {
        let head = format!(r#"{{"model":"{}","max_tokens":{answer},"stream":true,"messages":["#, self.model);
        let mut pieces = vec![Bytes::from(head)];
        for (at, message) in talk.iter().enumerate() {
            pieces.extend((at > 0).then(|| Bytes::from_static(b",")));
            pieces.push(message.clone());
        }
        pieces.push(Bytes::from_static(b"]}"));
        let began = Instant::now();
        let place = {
            let mut notes = self.notes.lock();
            let (agent, end) = (self.number, End::Open);
            notes.push(Note { agent, began, ended: began, end, replica: None, ttft: 0.0 });
            notes.len() - 1
        };
        let body = Pieces::new(pieces.into());
        let reply = tokio::time::timeout(self.work.patience, client.chat(&self.host, &body)).await;
        let mut notes = self.notes.lock();
        let note = &mut notes[place];
        note.ended = Instant::now();
        match reply {
            Ok(Ok(reply)) => {
                note.end = End::Answered;
                note.replica = reply.replica;
                note.ttft = reply.ttft_ms;
                return Some(reply.answer);
            }
            Ok(Err(why)) if matches!(why.as_str(), "status 429" | "status 503") => note.end = End::TurnedAway,
            Ok(Err(why)) => note.end = End::Failed(why),
            Err(_) => {
                note.end = End::Failed("gave up waiting".to_owned());
                drop(notes);
                // the connection with the answer that never came
                *client = Client::default();
            }
        }
        None
    }
}
