//! A simulated engine with a prefix cache of its own: it remembers the beginnings of the prompts that it has read, and
//! reports for each one how many of its tokens were cached. A token is four bytes; blocks are sixteen tokens.

use super::wire::read_request;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const BLOCK_BYTES: usize = 64;

/// A listening engine; stops on drop.
pub(crate) struct Caching {
    pub(crate) addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Caching {
    pub(crate) async fn start() -> Caching {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let cache = Arc::<Mutex<HashSet<u64>>>::default();
        let task = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(connection(stream, cache.clone()));
            }
        });
        Caching { addr, task }
    }
}

impl Drop for Caching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connection(mut stream: TcpStream, cache: Arc<Mutex<HashSet<u64>>>) {
    let mut buffer = Vec::new();
    while let Some((head, body)) = read_request(&mut stream, &mut buffer).await {
        let answer = match head.starts_with("POST ") {
            true => chat(&body, &cache),
            false => "{\"object\":\"list\",\"data\":[{\"id\":\"m\"}]}".to_owned(),
        };
        let head =
            format!("HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", answer.len());
        if stream.write_all(&[head.as_bytes(), answer.as_bytes()].concat()).await.is_err() {
            return;
        }
    }
}

/// Reads a prompt: what of it was cached, all of it is now.
fn chat(body: &[u8], cache: &Mutex<HashSet<u64>>) -> String {
    let (mut print, mut cached, mut is_there) = (0, 0, true);
    let mut cache = cache.lock().unwrap();
    for block in body.chunks_exact(BLOCK_BYTES) {
        print = xxh3_64_with_seed(block, print);
        is_there &= !cache.insert(print);
        cached += if is_there { BLOCK_BYTES / 4 } else { 0 };
    }
    let prompt = body.len() / 4;
    format!(
        "{{\"choices\":[{{\"message\":{{\"role\":\"assistant\",\"content\":\"ok\"}}}}],\"usage\":{{\"prompt_tokens\":{prompt},\
         \"completion_tokens\":2,\"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}}}"
    )
}
