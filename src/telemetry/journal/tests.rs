//! The writer where the disk does not take what it is given.

use super::*;
use crate::fleet::setbacks::Spared;
use crate::fleet::steps::{Change, Choice};
use crate::policy::select::Reason;
use crate::prefix::fingerprint::Ends;
use crate::types::ReplicaId;

fn choice(chain: &[u64]) -> Stage {
    let choice = Choice {
        request: 7,
        chain: chain.into(),
        ends: Ends::default(),
        body_bytes: 1,
        prompt_bytes: 1,
        model: None,
        streams: true,
        session: None,
        pinned: None,
        salt: 0,
        pool: Vec::new(),
        spared: Spared::default(),
        full: Vec::new(),
        is_new_session: false,
        waits: false,
        first: ReplicaId(0),
        reason: Reason::Cold,
        seen: Vec::new(),
        held: (0.0, 1.0),
        ttft_ms: 1.0,
    };
    Stage { at: 1.0, changes: vec![Change::Placed(Box::new(choice))] }
}

#[test]
fn what_follows_lines_that_could_not_be_written_can_be_read() {
    let path = std::env::temp_dir().join(format!("ramjet-journal-{}.jsonl", std::process::id()));
    let _old = std::fs::remove_file(&path);
    let good = open(&path).unwrap();
    let mut writer = Writer {
        path: path.clone(),
        file: good.try_clone().unwrap(),
        scribe: Scribe::new([3; 16]),
        metrics: Arc::new(Metrics::new().unwrap()),
        lost: Arc::default(),
        told: 0,
        orders: Orders::default(),
        fails: false,
    };
    let write = |writer: &mut Writer, chain: &[u64]| {
        writer.scribe.stage(&choice(chain));
        writer.flush();
    };
    writer.scribe.head(0.0);
    write(&mut writer, &[1, 2]);
    // a disk that is full for a moment: nothing can be written to what was opened to be read
    writer.file = File::open(&path).unwrap();
    write(&mut writer, &[1, 2, 3, 4]);
    assert_eq!(writer.lost.load(Relaxed), 1);
    writer.file = good;
    write(&mut writer, &[1, 2, 3, 4, 5]);
    let text = std::fs::read_to_string(&path).unwrap();
    let mut reader = Reader::default();
    let lines: Vec<Line> = text.lines().map(|line| reader.line(line).unwrap()).collect();
    let blocks = lines.iter().filter_map(|line| match line {
        Line::Step(stage) => match &stage.changes[..] {
            [Change::Placed(choice)] => Some(choice.chain.len()),
            _ => None,
        },
        _ => None,
    });
    assert_eq!(blocks.collect::<Vec<_>>(), [2, 5]);
    std::fs::remove_file(path).unwrap();
}
