//! `usage: ask_and_hide`: engines are asked how many tokens a stream took, learned from what they say, and clients that did
//! not ask see every byte of the stream but that.

use crate::support::client::{Answer, H1, begin_chat, chat_head, get, h2_connect, h2_request, h2_send_body, post};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{hex, there, until};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use xxhash_rust::xxh3::xxh3_64;

const CHAT: &str = "/v1/chat/completions";
const ASK: &str = r#""stream_options":{"include_usage":true},"#;
/// As a client sends it: with odd spaces and numbers, which stay.
const BODY: &str =
    r#"{"stream" : true ,"model":"m","temperature":1.50,"messages":[{"role":"user","content":"h\u0069"}]}"#;
const TOKEN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
/// An event that looks much like the one that is taken out.
const OTHER: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":9000,\"completion_tokens\":7}}\n\n";
const USAGE: &str = "data: {\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":9000,\"completion_tokens\":7,\
                     \"prompt_tokens_details\":{\"cached_tokens\":5000}}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

async fn asking(engine: &Engine) -> Ramjet {
    let upstreams = [engine.addr];
    Ramjet::start_with(Start { upstreams: &upstreams, config: "usage: ask_and_hide\n", ..Start::default() }).await
}

fn asked() -> String {
    BODY.replacen('{', &format!("{{{ASK}"), 1)
}

fn sse(text: &str) -> String {
    format!("sse={}", text.replace('\n', "\\n").replace('\r', "\\r"))
}

fn body(answer: &Answer) -> &str {
    std::str::from_utf8(&answer.body).unwrap()
}

/// The hash of the body of the last request that an engine saw.
fn last(engine: &Engine) -> u64 {
    engine.seen().last().unwrap().hash
}

async fn count(ramjet: &Ramjet, outcome: &str) -> f64 {
    let all = ramjet.series("ramjet_usage_asked_total").await;
    let outcome = format!("outcome=\"{outcome}\"");
    all.iter().filter(|(labels, _)| labels.contains(&outcome)).map(|(_, n)| n).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_asked_for_and_learned_and_the_client_sees_nothing_of_it() {
    let engine = Engine::start().await;
    let ramjet = asking(&engine).await;
    let stream = [TOKEN, ": a comment\n\n", TOKEN, OTHER, USAGE, DONE].concat();
    let wanted = stream.replace(USAGE, "");
    for path in [CHAT, "/v1/completions"] {
        let answer = post(ramjet.api, path, &sse(&stream), BODY).await.unwrap();
        assert_eq!((answer.status, body(&answer)), (200, wanted.as_str()), "{path}");
        assert_eq!(last(&engine), xxh3_64(asked().as_bytes()), "{path}");
    }
    // HTTP/2 has other frames and the same bytes
    let mut sender = h2_connect(ramjet.api).await;
    let (answer, mut sending) = sender.send_request(h2_request(&sse(&stream), None), false).unwrap();
    h2_send_body(&mut sending, BODY.into()).await;
    let mut receiving = answer.await.unwrap().into_body();
    let mut got = Vec::new();
    while let Some(piece) = receiving.data().await {
        let piece = piece.unwrap();
        receiving.flow_control().release_capacity(piece.len()).unwrap();
        got.extend_from_slice(&piece);
    }
    assert_eq!(std::str::from_utf8(&got).unwrap(), wanted);
    ramjet.settled().await;
    assert_eq!(ramjet.metric("ramjet_cached_prompt_tokens_total").await, 15_000.0);
    assert_eq!((count(&ramjet, "hidden").await, count(&ramjet, "unanswered").await), (3.0, 0.0));
    // an engine that says nothing
    let answer = post(ramjet.api, CHAT, &sse(&wanted), BODY).await.unwrap();
    assert_eq!(body(&answer), wanted);
    until("it is counted", || async { count(&ramjet, "unanswered").await == 1.0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_said_anything_of_it_is_left_alone_and_so_is_everybody_by_default() {
    let engine = Engine::start().await;
    let stream = [TOKEN, USAGE, DONE].concat();
    let with = |options: &str| BODY.replacen('{', &format!(r#"{{"stream_options":{options},"#), 1);
    let (asking, default) = (asking(&engine).await, Ramjet::start(&[engine.addr]).await);
    for (ramjet, path, own) in [
        (&asking, CHAT, with(r#"{"include_usage":true}"#)),
        (&asking, CHAT, with(r#"{"include_usage":false}"#)),
        (&asking, CHAT, with(r#"{"continuous_usage_stats":true}"#)),
        (&asking, CHAT, BODY.replace("true", "false")),
        (&asking, "/v1/responses", BODY.to_owned()),
        (&default, CHAT, BODY.to_owned()),
    ] {
        let answer = post(ramjet.api, path, &sse(&stream), &own).await.unwrap();
        assert_eq!((answer.status, body(&answer)), (200, stream.as_str()), "{own}");
        assert_eq!(last(&engine), xxh3_64(own.as_bytes()), "{own}");
    }
    // other options are no word of it
    let answer = post(asking.api, CHAT, &sse(&stream), &with(r#"{ "x":1}"#)).await.unwrap();
    assert_eq!(body(&answer), stream.replace(USAGE, ""));
    assert_eq!(last(&engine), xxh3_64(with(r#"{"include_usage":true, "x":1}"#).as_bytes()));
}

#[tokio::test(flavor = "multi_thread")]
async fn wherever_the_stream_is_cut_every_other_byte_passes() {
    let engine = Engine::start().await;
    let ramjet = asking(&engine).await;
    for end in ["\n", "\r\n"] {
        let stream = [TOKEN, USAGE, DONE].concat().replace('\n', end);
        let wanted = [TOKEN, DONE].concat().replace('\n', end);
        let whole: String = stream.chars().flat_map(|c| [c, '|']).collect();
        let cuts = (1..stream.len()).step_by(3).map(|cut| format!("{}|{}", &stream[..cut], &stream[cut..]));
        for cut in cuts.chain([whole]) {
            let answer = post(ramjet.api, CHAT, &sse(&cut), BODY).await.unwrap();
            assert_eq!(body(&answer), wanted, "{cut}");
        }
    }
    // a stream that breaks off keeps what it had
    let broken = [TOKEN, USAGE.trim_end()].concat();
    assert_eq!(body(&post(ramjet.api, CHAT, &sse(&broken), BODY).await.unwrap()), broken);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_do_not_wait_and_a_length_that_is_no_longer_true_is_not_told() {
    let engine = Engine::start().await;
    let ramjet = asking(&engine).await;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let begin = format!("{head}transfer-encoding: chunked\r\n\r\n{}", chunk(TOKEN));
    let rest = format!("{}0\r\n\r\n", chunk(&[USAGE, DONE].concat()));
    engine.script(&[&format!("hex={}", hex::encode(&[begin.into_bytes(), rest.into_bytes()]))]);
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    let request = format!("{}{BODY}", chat_head(&format!("content-length: {}\r\n", BODY.len())));
    h1.send(request.as_bytes()).await;
    h1.head().await.unwrap();
    // while the engine waits
    let first = chunk(TOKEN).to_uppercase().len();
    assert!(h1.take(first).await.unwrap().ends_with(format!("{TOKEN}\r\n").as_bytes()));
    engine.call();
    until("the rest", || async { count(&ramjet, "hidden").await == 1.0 }).await;

    let stream = [TOKEN, USAGE, DONE].concat();
    let wanted = stream.replace(USAGE, "");
    let sized = format!("raw={head}content-length: {}\r\n\r\n{stream}", stream.len());
    let sized = sized.replace('\n', "\\n").replace('\r', "\\r");
    let answer = post(ramjet.api, CHAT, &sized, BODY).await.unwrap();
    assert_eq!((body(&answer), answer.header("content-length")), (wanted.as_str(), None));
    // HTTP/1.0 has no chunks: the answer ends with the connection
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    let fields = format!("x-play: {sized}\r\nconnection: keep-alive\r\ncontent-length: {}\r\n", BODY.len());
    h1.send(format!("{}{BODY}", chat_head(&fields).replacen("HTTP/1.1", "HTTP/1.0", 1)).as_bytes()).await;
    let head = h1.head().await.unwrap().to_lowercase();
    assert!(!head.contains("transfer-encoding") && !head.contains("content-length"), "{head}");
    assert_eq!(h1.take(wanted.len()).await.unwrap(), wanted.as_bytes());
    assert!(h1.take(1).await.is_err(), "and nothing else");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_refuses_the_question_is_asked_without_it_and_not_again() {
    let engine = Engine::start().await;
    let ramjet = asking(&engine).await;
    let stream = [TOKEN, DONE].concat();
    for (status, model) in [(400, "m"), (422, "m2")] {
        let own = BODY.replace("\"m\"", &format!("\"{model}\""));
        let plain = xxh3_64(own.as_bytes());
        let before = engine.seen().len();
        engine.script(&[&format!("status={status}")]);
        let answer = post(ramjet.api, CHAT, &sse(&stream), &own).await.unwrap();
        assert_eq!((answer.status, body(&answer)), (200, stream.as_str()), "{status}");
        let seen = engine.seen();
        assert_eq!(seen.len(), before + 2);
        assert!(seen[before].hash != plain && seen[before + 1].hash == plain, "byte for byte as it came");
        // the next one is not asked
        let answer = post(ramjet.api, CHAT, &sse(&stream), &own).await.unwrap();
        assert_eq!((answer.status, last(&engine), engine.seen().len()), (200, plain, before + 3));
    }
    assert_eq!(count(&ramjet, "refused").await, 2.0);
    // another model is
    let own = BODY.replace("\"m\"", "\"m3\"");
    engine.script(&["status=400", "status=400"]);
    let before = engine.seen().len();
    // what is wrong with or without it is the client's, and says nothing of the question
    let answer = post(ramjet.api, CHAT, "", &own).await.unwrap();
    assert_eq!(
        (answer.status, body(&answer), engine.seen().len()),
        (400, "{\"error\":{\"message\":\"engine\"}}", before + 2)
    );
    post(ramjet.api, CHAT, &sse(&stream), &own).await.unwrap();
    assert_ne!(last(&engine), xxh3_64(own.as_bytes()), "asked again");
    ramjet.settled().await;
    assert_eq!((count(&ramjet, "refused").await, count(&ramjet, "unanswered").await), (2.0, 1.0));
    assert_eq!(ramjet.metric("ramjet_upstream_errors_total").await, 0.0);
    assert_eq!(get(ramjet.api, "/health").await.unwrap().json()["status"], "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_event_goes_also_where_the_engine_says_that_it_does_not_compress() {
    let engine = Engine::start().await;
    let ramjet = asking(&engine).await;
    let stream = [TOKEN, USAGE, DONE].concat();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: identity\r\n";
    let play = format!("raw={head}content-length: {}\r\n\r\n{stream}", stream.len());
    let answer = post(ramjet.api, CHAT, &play.replace('\n', "\\n").replace('\r', "\\r"), BODY).await.unwrap();
    assert_eq!(body(&answer), stream.replace(USAGE, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_refuses_is_refused_also_where_others_wait_for_room() {
    let engine = Engine::start().await;
    let upstreams = [engine.addr];
    let config = "usage: ask_and_hide\nlimits: { inflight_per_replica: 1, queue: { size: 9, wait: 5s } }\n";
    let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config, ..Start::default() }).await;
    engine.script(&["on-call-fail"]);
    let refused = tokio::spawn(post(ramjet.api, CHAT, "status=400", BODY));
    until("it is there", || async { engine.seen().len() == 1 }).await;
    let _next = begin_chat(ramjet.api, "decode", BODY.as_bytes()).await.unwrap();
    until("another one waits", || async { ramjet.metric("ramjet_queue_length").await == 1.0 }).await;
    engine.call();
    let answer = refused.await.unwrap().unwrap();
    assert_eq!((answer.status, body(&answer)), (400, "{\"error\":{\"message\":\"engine\"}}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rank_stands_in_the_body_whether_it_is_asked_or_not() {
    let engine = Engine::start().await;
    let replicas = [format!("{{ name: e, url: \"http://{}\", dp_ranks: 2 }}", engine.addr)];
    let config = "usage: ask_and_hide\n";
    let ramjet = Ramjet::start_with(Start { replicas: &replicas, config, ..Start::default() }).await;
    engine.script(&["status=400"]);
    post(ramjet.api, CHAT, &sse(DONE), BODY).await.unwrap();
    let of = |body: &str| {
        let ranked = |rank: u8| format!("{},\"routed_dp_rank\":{rank}}}", body.strip_suffix('}').unwrap());
        [0, 1].map(|rank| xxh3_64(ranked(rank).as_bytes()))
    };
    let seen = engine.seen();
    assert!(of(&asked()).contains(&seen[0].hash) && of(BODY).contains(&seen[1].hash));
    assert_eq!(seen[0].header("x-data-parallel-rank"), seen[1].header("x-data-parallel-rank"));
    // the client's own rank goes, which moves what stands behind it
    let own = BODY.replacen('{', r#"{"routed_dp_rank":9,"stream_options":{},"#, 1);
    let left = own.replace(r#""routed_dp_rank":9,"#, "");
    engine.script(&["status=400"]);
    let answer = post(ramjet.api, CHAT, &sse(DONE), &own.replace("\"m\"", "\"m2\"")).await.unwrap();
    assert_eq!(answer.status, 200);
    let seen = engine.seen();
    assert!(of(&left.replace("\"m\"", "\"m2\"")).contains(&seen[3].hash), "byte for byte, but for the rank");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_asked_is_told_not_to_compress_and_what_it_compresses_is_left_alone() {
    let engine = Engine::start().await;
    let ramjet = asking(&engine).await;
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all([TOKEN, USAGE, DONE].concat().as_bytes()).unwrap();
    let packed = gzip.finish().unwrap();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
        packed.len()
    );
    engine.script(&[&format!("hex={}", hex::encode(&[[head.as_bytes(), &packed].concat()])), "status=400"]);
    let ask = || async {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        let fields = format!("accept-encoding: gzip, br\r\ncontent-length: {}\r\n", BODY.len());
        h1.send(format!("{}{BODY}", chat_head(&fields)).as_bytes()).await;
        h1.answer().await.unwrap()
    };
    let answer = ask().await;
    assert_eq!((answer.header("content-encoding"), &answer.body), (Some("gzip"), &packed));
    until("what it says is heard", || async { ramjet.metric("ramjet_cached_prompt_tokens_total").await == 5000.0 })
        .await;
    // who is not asked may do as the client says
    ask().await;
    let coding = |n: usize| engine.seen()[n].header("accept-encoding").map(str::to_owned);
    let second = there("the second attempt", || std::future::ready(engine.seen().get(2).map(|_| coding(2)))).await;
    assert_eq!((coding(0).as_deref(), second.as_deref()), (Some("identity"), Some("gzip, br")));
}
